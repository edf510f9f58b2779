// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

// screens are those of a job that grows: of each second one.
type screens struct {
	list  []*Screen
	asked int
}

func (s *screens) Next(context.Context) (*Screen, error) {
	if len(s.list) == 0 {
		return nil, io.EOF
	}
	next := s.list[0]
	s.list = s.list[1:]
	return next, nil
}

func (s *screens) ReadHolders() { s.asked++ }

func made(second int) *Screen {
	n := func(v uint64) *uint64 { return &v }
	bytes := int64(1<<30 + second*72<<20)
	peak, growth := bytes+64<<20, 3.0*(1<<20)
	used := uint64(bytes) + 700<<20
	rest := int64(100 << 20)
	return &Screen{
		Time: time.Unix(int64(second), 0), Elapsed: float64(second), Rate: 15041,
		Processes: []Process{{PID: 48211, Name: "train.py --layers 12"}},
		Memory: Memory{
			Allocated: n(uint64(bytes)), Cached: n(500 << 20), Other: 100 << 20, Used: &used, Unexplained: &rest, Capacity: n(24 << 30),
			Peak: n(uint64(peak)),
		},
		Verdict: "growing", Sentence: "growing: train.py:41 main keeps 3.0 MiB more each step, since step 3 of 240, 98 % of the growth",
		StepCount: 2 * second, StepTime: 42,
		Tables: map[By][]Row{
			ByLine: {
				{Name: "train.py:41", Function: "main", File: "/home/a/train.py", Line: 41, Source: "losses.append(loss)", Bytes: bytes - 900<<20,
					Blocks: 812, Peak: &peak, PerStep: &growth, Holder: "losses[*]"},
				{Name: "model.py:88", Function: "Block.forward", File: "/home/a/model.py", Line: 88, Source: "x = x + self.mlp(self.norm(x))",
					Bytes: 600 << 20, Blocks: 96, Peak: &peak},
				{Name: "torch::autograd::generated::AddmmBackward0::apply", Bytes: 300 << 20, Blocks: 12, Peak: &peak},
			},
			ByPhase: {{Name: "forward", Bytes: bytes, Blocks: 920, Peak: &peak}},
		},
		Stacks: []StackOfLine{{Row: "train.py:41\x00main\x00/home/a/train.py", Bytes: bytes - 900<<20, Blocks: 812,
			Frames: []string{"at::mul", "train.py:41 main"}, Python: []int{1}}},
	}
}

func model(t *testing.T, n int) (*Model, *screens) {
	t.Helper()
	feed := &screens{}
	for i := range n {
		feed.list = append(feed.list, made(i))
	}
	m := NewModel(context.Background(), feed)
	for range n {
		m.Update(m.wait()())
	}
	return m, feed
}

func press(m *Model, keys ...string) {
	for _, k := range keys {
		switch k {
		case "enter":
			m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
		case "left":
			m.Update(tea.KeyPressMsg{Code: tea.KeyLeft})
		case "right":
			m.Update(tea.KeyPressMsg{Code: tea.KeyRight})
		case "down":
			m.Update(tea.KeyPressMsg{Code: tea.KeyDown})
		case "tab":
			m.Update(tea.KeyPressMsg{Code: tea.KeyTab})
		case "esc":
			m.Update(tea.KeyPressMsg{Code: tea.KeyEscape})
		case "space":
			m.Update(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
		default:
			for _, r := range k {
				m.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
	}
}

// The screen at four widths is as in testdata, fits, and no file and line is cut: of a fast job, and of one whose phases can be seen.
func TestGolden(t *testing.T) {
	for width, height := range map[int]int{60: 20, 80: 24, 120: 40, 200: 60} {
		fast, _ := model(t, 90)
		for name, m := range map[string]*Model{"screen": fast, "phases": slow(90)} {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			got := ansi.Strip(m.draw())
			lines := strings.Split(got, "\n")
			require.LessOrEqual(t, len(lines), height)
			for _, line := range lines {
				require.LessOrEqual(t, ansi.StringWidth(line), width, line)
			}
			for _, name := range []string{"train.py:41", "model.py:88", "AddmmBackward0"} {
				require.Contains(t, got, name, "width %d", width)
			}
			path := filepath.Join("testdata", fmt.Sprintf("%s-%d.txt", name, width))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got+"\n"), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got+"\n")
		}
	}
}

// Going back shows the table of then; the newest is back at the end, and a paused screen stands while others come.
func TestScrub(t *testing.T) {
	m, feed := model(t, 20)
	press(m, "left", "left", "left")
	require.InDelta(t, 16, m.Shown().Elapsed, 0)
	require.Equal(t, made(16).Tables[ByLine][0].Bytes, m.Rows()[0].Bytes)
	feed.list = append(feed.list, made(20))
	m.Update(m.wait()())
	require.InDelta(t, 16, m.Shown().Elapsed, 0, "what is looked at stays")
	press(m, "right", "right", "right", "right", "right")
	require.InDelta(t, 20, m.Shown().Elapsed, 0)

	press(m, "space")
	feed.list = append(feed.list, made(21), made(22))
	m.Update(m.wait()())
	m.Update(m.wait()())
	require.InDelta(t, 20, m.Shown().Elapsed, 0)
	require.Contains(t, ansi.Strip(m.draw()), "at +20.0 s")
	press(m, "space")
	require.InDelta(t, 22, m.Shown().Elapsed, 0)

	for range maxHistory + 5 {
		feed.list = append(feed.list, made(23))
		m.Update(m.wait()())
	}
	require.Len(t, m.history, maxHistory)
}

// The change is counted from the first screen, or from where b was pressed.
func TestBaseline(t *testing.T) {
	m, feed := model(t, 11)
	require.Contains(t, ansi.Strip(m.draw()), "+720.0 MiB")
	press(m, "b")
	feed.list = append(feed.list, made(12))
	m.Update(m.wait()())
	require.Contains(t, ansi.Strip(m.draw()), "+144.0 MiB")
	press(m, "r")
	require.Contains(t, ansi.Strip(m.draw()), "+864.0 MiB")
}

func TestFilterAndSort(t *testing.T) {
	m, _ := model(t, 3)
	press(m, "/", "model.py", "enter")
	require.Len(t, m.Rows(), 1)
	require.Contains(t, m.draw(), "model.py")
	press(m, "/", "\x15")
	press(m, "esc")
	require.Len(t, m.Rows(), 3)
	press(m, "/", "live>x", "enter")
	require.Contains(t, ansi.Strip(m.draw()), `not a size`)
	require.Len(t, m.Rows(), 3, "the old filter stays")
	press(m, "esc", "S")
	require.Equal(t, "model.py:88", m.Rows()[0].Name, "by name")
	press(m, "q"[:0], "s", "s")
	require.Equal(t, "train.py:41", m.Rows()[0].Name, "by what grows")
}

// Holders are asked for when their table is shown, and what is not there yet is said.
func TestHoldersAreAskedFor(t *testing.T) {
	m, feed := model(t, 3)
	require.Zero(t, feed.asked)
	press(m, "2")
	require.Equal(t, 1, feed.asked)
	require.Contains(t, ansi.Strip(m.draw()), "reading who holds the blocks")
	s := made(4)
	s.Tables[ByHolder] = []Row{{Name: "self.losses[*]", Bytes: 5 << 20, Blocks: 5, Category: "graph"}}
	s.Held = &HeldAt{Time: s.Time, Bytes: 5 << 20}
	feed.list = append(feed.list, s)
	m.Update(m.wait()())
	text := ansi.Strip(m.draw())
	require.Contains(t, text, "self.losses[*]")
	require.NotContains(t, text, "+5.0 MiB", "nothing to compare with")
}

// TestHolderChange: what a holder has more is counted from reading to reading, whatever range its name has; before
// a second reading there is nothing to count from.
func TestHolderChange(t *testing.T) {
	feed := &screens{}
	for i, name := range []string{"", "d.attn[0..4]['block0'][0..49]", "d.attn[0..8]['block0'][0..49]"} {
		s := made(i)
		if name != "" {
			s.Tables[ByHolder] = []Row{{Name: name, Bytes: []int64{0, 108 << 20, 210 << 20}[i], Blocks: 1}, {Name: "model", Bytes: 1 << 30}}
			s.Held = &HeldAt{Time: s.Time}
		}
		feed.list = append(feed.list, s)
	}
	m := NewModel(context.Background(), feed)
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	press(m, "2")
	m.Update(m.wait()())
	m.Update(m.wait()())
	require.Regexp(t, `108\.0 MiB +10 % +- +-`, ansi.Strip(m.draw()))
	m.Update(m.wait()())
	text := ansi.Strip(m.draw())
	require.Regexp(t, `210\.0 MiB +17 % +\+102\.0 MiB .*d\.attn\[0\.\.8\]\['block0'\]\[0\.\.49\]`, text)
	require.Regexp(t, `1\.0 GiB +83 % +0 B .*model`, text)
}

// TestPausedWithoutHolders: where the screen stands still, it says that holders were not read then.
func TestPausedWithoutHolders(t *testing.T) {
	m, _ := model(t, 3)
	press(m, "space", "2")
	require.Contains(t, ansi.Strip(m.draw()), "was not read at +2.0 s; end shows now")
	press(m, "space")
	require.Contains(t, ansi.Strip(m.draw()), "reading who holds the blocks")
}

// TestHelpHidesNothing: a key that closes the help does nothing else.
func TestHelpHidesNothing(t *testing.T) {
	m, _ := model(t, 3)
	press(m, "?")
	require.Contains(t, m.draw(), "any key")
	press(m, "space")
	require.NotContains(t, m.draw(), "any key")
	require.False(t, m.paused)
}

// TestStackScrolls: Python's frames come first, and all others can be reached on a small terminal.
func TestStackScrolls(t *testing.T) {
	feed := &screens{}
	s := made(50)
	st := &s.Stacks[0]
	st.Frames, st.Python = []string{"native 0", "vit.py:26 forward", "native 2", "vit.py:60 main"}, []int{1, 3}
	for i := range 40 {
		st.Frames = append(st.Frames, fmt.Sprintf("native %d", 4+i))
	}
	feed.list = append(feed.list, s)
	m := NewModel(context.Background(), feed)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	m.Update(m.wait()())
	press(m, "enter")
	text := ansi.Strip(m.draw())
	require.Less(t, strings.Index(text, "vit.py:26 forward"), strings.Index(text, "vit.py:60 main"))
	require.Less(t, strings.Index(text, "vit.py:60 main"), strings.Index(text, "native 0"))
	require.Contains(t, text, "more lines below")
	seen := text
	for range 60 {
		press(m, "down")
		seen += ansi.Strip(m.draw())
	}
	for i := range 44 {
		if i != 1 && i != 3 {
			require.Contains(t, seen, fmt.Sprintf("native %d\n", i))
		}
	}
	require.NotContains(t, ansi.Strip(m.draw()), "more line")
	require.Zero(t, m.selected, "another row is not chosen meanwhile")

	press(m, "space")
	for i := range 3 {
		feed.list = append(feed.list, made(51+i))
		m.Update(m.wait()())
	}
	require.Contains(t, ansi.Strip(m.draw()), "native 43", "the stacks of the screen that stands still are kept")
}

func TestDetailAndMouse(t *testing.T) {
	m, _ := model(t, 20)
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	lines := strings.Split(ansi.Strip(m.draw()), "\n")
	for y, line := range lines {
		if strings.Contains(line, "model.py:88") {
			m.Update(tea.MouseClickMsg{Y: y, Button: tea.MouseLeft})
		}
	}
	require.Equal(t, 1, m.selected)
	m.Update(tea.MouseWheelMsg{Button: tea.MouseWheelUp})
	require.Zero(t, m.selected)
	press(m, "enter")
	text := ansi.Strip(m.draw())
	for _, part := range []string{"/home/a/train.py", "losses.append(loss)", "losses[*]", "at::mul", "812 blocks"} {
		require.Contains(t, text, part)
	}
	press(m, "esc", "?")
	require.Contains(t, m.draw(), "pause")
}

// The keys are all to be read on a terminal of 80 by 24.
func TestHelpFits(t *testing.T) {
	require.LessOrEqual(t, len(helpLines), 24)
	for _, line := range helpLines {
		require.LessOrEqual(t, ansi.StringWidth(line), 80, line)
	}
}

// What is shown is written with all rows, of the moment, the table and the filter that are shown, and nothing is replaced.
func TestWriteScreen(t *testing.T) {
	t.Chdir(t.TempDir())
	m, _ := model(t, 20)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 18})
	for i := range 40 {
		s := m.history[10]
		s.Tables[ByLine] = append(s.Tables[ByLine], Row{Name: fmt.Sprintf("model.py:%d", 100+i), Bytes: 1 << 20, Blocks: 1})
	}
	press(m, "[", "right", "/", "name~model", "enter", "w")
	path := "gputrace-top." + m.Shown().Time.Format("20060102-150405") + ".line.txt"
	require.Contains(t, ansi.Strip(m.draw()), "wrote "+path)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	text := string(got)
	require.Equal(t, 41, strings.Count(text, "model.py:"), text)
	require.NotContains(t, text, "train.py:41  main")
	require.Contains(t, text, "+10.0 s")
	require.NotContains(t, text, "q quit")
	press(m, "w")
	require.Contains(t, ansi.Strip(m.draw()), "exists already")
}

// A process that does not run is named as such at the beginning of the first line.
func TestPaused(t *testing.T) {
	m, _ := model(t, 2)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	require.True(t, strings.HasPrefix(ansi.Strip(m.draw()), "pid 48211 train.py"), m.draw())
	m.history[len(m.history)-1].Processes[0].Paused = "stopped by a signal (kill -CONT 48211 continues it)"
	require.True(t, strings.HasPrefix(ansi.Strip(m.draw()), "pid 48211 is stopped by a signal, "), m.draw())
}

// Nothing breaks on a strange terminal or without a screen.
func TestSmall(t *testing.T) {
	m := NewModel(context.Background(), &screens{})
	require.Contains(t, m.draw(), "waiting")
	m, _ = model(t, 2)
	for width := 1; width < 130; width += 7 {
		for height := 1; height < 50; height += 3 {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			require.LessOrEqual(t, strings.Count(m.draw(), "\n")+1, height)
		}
	}
	m.Update(m.wait()())
	require.True(t, m.ended)
	require.Contains(t, ansi.Strip(m.draw()), "end")
}

// The curve's dots are where the values are: the top at the largest, one row for one at 0, none where nothing is known.
func TestArea(t *testing.T) {
	require.Equal(t, []string{"⠀⠀⠀⢸", "⠀⠀⢀⣸"}, area([]float64{-1, 0, 0, 100}, nil, 4, 2, 100))
	require.Equal(t, []string{"⠉⠉"}, area([]float64{-1, -1, -1, -1}, []float64{8, 8, 8, 8}, 2, 1, 8))
	require.Equal(t, []float64{3, 9}, squeeze([]float64{1, 3, 2, 9, 0, 4}, 2))
}
