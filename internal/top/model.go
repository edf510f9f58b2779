// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Feed is where screens come from.
type Feed interface {
	// Next waits for the next screen. The error is io.EOF behind the last one, or that of ctx.
	Next(ctx context.Context) (*Screen, error)
	// ReadHolders asks for a reading of holders, which is in a later screen. A feed that cannot read them does nothing.
	ReadHolders()
}

// maxHistory is how many screens one can go back to: a quarter of an hour of them, each of some 40 kB.
const maxHistory = 900

// Sort is by what a table is sorted.
type Sort int

// The sorts, in the order of their keys.
const (
	SortLive Sort = iota
	SortGrowth
	SortChange
	SortPeak
	SortBlocks
	SortName
	sortCount // number of them
)

var sortNames = [sortCount]string{"live", "per step", "change", "peak", "blocks", "name"}

// Model is the state of the screen: a tea.Model.
type Model struct {
	feed   Feed
	ctx    context.Context
	width  int
	height int

	history []*Screen
	paused  bool
	back    int // screens before the newest that is shown; 0: the newest
	ended   bool
	lost    bool // the connection to the recorder; it is tried again
	err     error

	table    int // of Tables
	sort     Sort
	selected int
	top      int // first row on the screen
	detail   bool
	scroll   int // first line of the detail on the screen
	help     bool
	base     *Screen // of the change column; nil: the first screen

	query   []rune // as it is typed
	typing  bool
	filter  *Filter
	message string
	asked   time.Time // when holders were asked for
}

// NewModel is the screen of a feed. It stops waiting for it when ctx is done.
func NewModel(ctx context.Context, feed Feed) *Model {
	return &Model{feed: feed, ctx: ctx, width: 80, height: 24}
}

// next is the message that a screen has come, or why none comes any more.
type next struct {
	screen *Screen
	err    error
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.wait() }

func (m *Model) wait() tea.Cmd {
	return func() tea.Msg {
		s, err := m.feed.Next(m.ctx)
		return next{s, err}
	}
}

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.MouseMode = tea.MouseModeCellMotion
	v.WindowTitle = "gputrace top"
	return v
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case next:
		return m, m.take(msg)
	case tea.KeyPressMsg:
		if m.typing {
			m.edit(msg)
			return m, nil
		}
		return m, m.press(msg.String())
	case tea.MouseWheelMsg:
		m.move(map[tea.MouseButton]int{tea.MouseWheelUp: -3, tea.MouseWheelDown: 3}[msg.Button])
	case tea.MouseClickMsg:
		if row := m.rowAt(msg.Y); row >= 0 {
			m.selected = row
		}
	}
	return m, nil
}

// take shows a new screen, unless the screen stands still.
func (m *Model) take(n next) tea.Cmd {
	if errors.Is(n.err, ErrLost) {
		m.lost = true
		return m.wait()
	}
	m.lost = false
	if n.err != nil {
		m.ended = true
		if !errors.Is(n.err, io.EOF) && !errors.Is(n.err, context.Canceled) {
			m.err = n.err
		}
		return nil
	}
	if k := len(m.history); k > 0 && (m.back > 0 || !m.paused) {
		m.history[k-1].Stacks = nil // of the newest only, and of the one at which the screen was paused
	}
	if len(m.history) == maxHistory {
		m.history = slices.Delete(m.history, 0, 1)
	}
	m.history = append(m.history, n.screen)
	if m.paused || m.back > 0 {
		m.back = min(m.back+1, len(m.history)-1)
	}
	if m.table == slices.Index(Tables, ByHolder) || m.table == slices.Index(Tables, ByCategory) {
		m.readHolders(n.screen)
	}
	return m.wait()
}

// holdersEvery is how often holders are read while a table of them is shown.
const holdersEvery = 15 * time.Second

func (m *Model) readHolders(s *Screen) {
	if s.Time.Sub(m.asked) >= holdersEvery {
		m.asked = s.Time
		m.feed.ReadHolders()
	}
}

// Shown is the screen that is on the terminal; nil before the first.
func (m *Model) Shown() *Screen {
	if len(m.history) == 0 {
		return nil
	}
	return m.history[len(m.history)-1-m.back]
}

// press handles a key.
func (m *Model) press(key string) tea.Cmd {
	m.message = ""
	if m.help && key != "q" && key != "ctrl+c" { // nothing happens behind it
		m.help = false
		return nil
	}
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "esc":
		m.escape()
	case "?", "h":
		m.help = true
	case "space", "f":
		m.pause()
	case "tab", "shift+tab":
		m.choose(m.table + map[string]int{"tab": 1, "shift+tab": -1}[key])
	case "1", "2", "3", "4", "5":
		m.choose(int(key[0] - '1'))
	case "s":
		m.sort = (m.sort + 1) % sortCount
	case "S":
		m.sort = (m.sort + sortCount - 1) % sortCount
	case "/":
		m.typing = true
	case "b":
		m.base, m.message = m.Shown(), "change is counted from here"
	case "r":
		m.base, m.message = nil, "change is counted from the first screen"
	case "enter":
		m.detail, m.scroll = !m.detail, 0
	case "w":
		m.write()
	default:
		m.steer(key)
	}
	return nil
}

// steer moves in the table and in time.
func (m *Model) steer(key string) {
	page := max(1, m.tableHeight()-1)
	switch key {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-page)
	case "pgdown":
		m.move(page)
	case "home", "g":
		m.move(-maxRows)
	case "left":
		m.scrub(1)
	case "right":
		m.scrub(-1)
	case "shift+left", "[":
		m.scrub(10)
	case "shift+right", "]":
		m.scrub(-10)
	case "end":
		m.back, m.paused = 0, false
	}
}

func (m *Model) escape() {
	switch {
	case m.detail:
		m.detail = false
	case m.filter != nil:
		m.filter, m.query = nil, nil
	default:
		m.back, m.paused = 0, false
	}
}

func (m *Model) pause() {
	m.paused = !m.paused
	if !m.paused {
		m.back = 0
	}
}

func (m *Model) choose(table int) {
	m.table = (table + len(Tables)) % len(Tables)
	m.selected, m.top, m.detail = 0, 0, false
	if s := m.Shown(); s != nil && (Tables[m.table] == ByHolder || Tables[m.table] == ByCategory) && s.Held == nil {
		m.readHolders(s)
	}
}

// scrub goes back in time.
func (m *Model) scrub(screens int) {
	m.back = max(0, min(m.back+screens, len(m.history)-1))
	if m.back == 0 {
		m.paused = false
	}
}

// move chooses another row, or scrolls the detail.
func (m *Model) move(rows int) {
	if m.detail {
		m.scroll = max(0, m.scroll+rows) // not beyond the end: see scrolled
		return
	}
	m.selected = max(0, min(m.selected+rows, len(m.Rows())-1))
}

// edit handles a key of the query.
func (m *Model) edit(k tea.KeyPressMsg) {
	switch key := k.String(); key {
	case "esc":
		m.typing, m.query, m.filter = false, nil, nil
	case "enter":
		m.typing = false
		m.apply()
	case "backspace":
		m.query = m.query[:max(0, len(m.query)-1)]
	case "ctrl+c":
		m.typing = false
	case "ctrl+u":
		m.query = nil
	default:
		m.query = append(m.query, []rune(k.Text)...)
	}
}

// apply filters by the query. What is wrong with it is said, and the old filter stays.
func (m *Model) apply() {
	f, err := ParseFilter(string(m.query))
	if err != nil {
		m.message = err.Error()
		return
	}
	m.filter, m.selected, m.top = f, 0, 0
}

// Rows are those of the table that is shown, sorted and filtered.
func (m *Model) Rows() []Row {
	s := m.Shown()
	if s == nil {
		return nil
	}
	var out []Row
	for _, r := range s.Tables[Tables[m.table]] {
		if m.filter.Shows(&r) {
			out = append(out, r)
		}
	}
	m.order(out)
	return out
}

// order sorts rows; the rest comes last. Equal ones stay by bytes.
func (m *Model) order(rows []Row) {
	base := m.baseline()
	value := func(r *Row) float64 {
		switch m.sort {
		case SortGrowth:
			if r.PerStep != nil {
				return *r.PerStep
			}
			return 0
		case SortChange:
			return float64(r.Bytes - base[r.Key()])
		case SortPeak:
			if r.Peak != nil {
				return float64(*r.Peak)
			}
			return 0
		case SortBlocks:
			return float64(r.Blocks)
		}
		return float64(r.Bytes)
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		switch {
		case a.Rest != b.Rest:
			return map[bool]int{true: 1, false: -1}[a.Rest]
		case m.sort == SortName:
			return cmp.Compare(a.Name, b.Name)
		}
		return cmp.Compare(value(&b), value(&a))
	})
}

// baseline is the bytes of each row in the screen that the change column counts from: the first one that has the table. nil: there is none
// before the one that is shown.
func (m *Model) baseline() map[string]int64 {
	by := Tables[m.table]
	from := m.base
	for i := 0; from == nil && i < len(m.history)-1-m.back; i++ {
		if m.history[i].Tables[by] != nil {
			from = m.history[i]
		}
	}
	if from == nil || from.Tables[by] == nil {
		return nil
	}
	out := map[string]int64{}
	for _, r := range from.Tables[by] {
		out[r.Key()] = r.Bytes
	}
	return out
}
