// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image"
	"image/png"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/eventtest"
)

func browse(t *testing.T, s *eventtest.Stream) *pagemodel.Model {
	t.Helper()
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	b, err := pagemodel.New(trace, &pagemodel.Options{Points: Points})
	require.NoError(t, err)
	return b
}

// texts reads an SVG as any XML reader does, and gives what is written in it.
func texts(t *testing.T, svg []byte) []string {
	t.Helper()
	var out []string
	d, inside := xml.NewDecoder(bytes.NewReader(svg)), false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			inside = token.Name.Local == "text"
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); inside && text != "" {
				out = append(out, text)
			}
		}
	}
}

// A picture has a panel for each device, with its peak, units from 0 on, and where memory was refused.
func TestSVG(t *testing.T) {
	s := eventtest.Random(2, 4000)
	b := browse(t, s)
	var out bytes.Buffer
	require.NoError(t, Write(&out, SVG, Input{Browse: b, Title: "GPU memory of <b>&\x1b[31m\"x\""}))
	got := texts(t, out.Bytes())
	require.Contains(t, got, "GPU memory of <b>&�[31m\"x\"")
	peaks := 0
	for _, text := range got {
		for i := range b.Parts {
			if strings.HasPrefix(text, "PyTorch peak "+table.Bytes(b.Parts[i].Peak)+" at ") {
				peaks++
			}
		}
	}
	require.Equal(t, 2, peaks, "%q", got)
	for _, want := range []string{"cuda:0 · pid 4242", "cuda:1 · pid 4242", "0 B", "torch reserved", "from the driver", "smaller rows",
		"out of memory"} {
		require.Contains(t, got, want)
	}
	require.Less(t, out.Len(), 1<<20)
}

// colours counts the pixels in the area under the curve of allocated bytes, by column.
func filled(img image.Image, from, to int) (columns map[int]int) {
	columns = map[int]int{}
	for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
		for y := from; y < to; y++ {
			if r, g, b, _ := img.At(x, y).RGBA(); b > r+0x1800 && b > g+0x800 || b > r && r > 0x9000 && b < 0xf000 {
				columns[x]++
			}
		}
	}
	return columns
}

// What is allocated is drawn to scale: half of the bytes, half of the height, from 0 on.
func TestPNGIsToScale(t *testing.T) {
	s := &eventtest.Stream{Stacks: map[event.StackID]*event.Stack{}}
	for i := range uint64(2) { // 1 GiB for a second, then 2 GiB
		s.Events = append(s.Events, event.Event{
			Time: 1e9 * (i + 1), PID: 7, TID: 7, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA},
			Addr: 1 << 40 * (i + 1), Size: 1 << 30, Allocated: 1 << 30 * (i + 1), Reserved: event.Unknown, Requested: event.Unknown,
			Stream: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
		})
	}
	s.Events = append(s.Events, s.Events[1])
	s.Events[2].Kind, s.Events[2].Time, s.Events[2].Allocated, s.Events[2].Size = event.KindOutOfMemory, 3e9, 2<<30, 1<<40
	var out bytes.Buffer
	require.NoError(t, Write(&out, PNG, Input{Browse: browse(t, s), Title: "two steps"}))
	img, err := png.Decode(&out)
	require.NoError(t, err)
	require.Equal(t, 1600, img.Bounds().Dx())
	columns := filled(img, img.Bounds().Dy()/4, img.Bounds().Dy())
	low, high := 0, 0
	for x, n := range columns {
		if x > 300 && x < 700 {
			low = max(low, n)
		}
		if x > 1000 && x < 1300 {
			high = max(high, n)
		}
	}
	require.Greater(t, low, 100)
	require.InDelta(t, 2, float64(high)/float64(low), 0.06, "%d and %d pixels high", low, high)
}

// Nothing seen is said, not drawn as 0.
func TestNothingToDraw(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Write(&out, SVG, Input{Browse: &pagemodel.Model{}, Title: "nothing"}))
	require.Contains(t, texts(t, out.Bytes()), "no GPU memory was seen")
}

// A range begins with what holds then.
func TestRange(t *testing.T) {
	b := browse(t, eventtest.Random(2, 4000))
	from := b.First + (b.Last-b.First)/2
	for i := range b.Parts {
		a := axis{start: b.First, from: from, to: b.Last}
		values, _ := a.points(b.Parts[i].Curve, pagemodel.QuantityAllocated)
		before := uint64(0)
		for _, p := range b.Parts[i].Curve {
			if p.Time < from {
				before = p.Last[pagemodel.QuantityAllocated]
			}
		}
		require.Equal(t, value{from, before}, values[0])
		require.Equal(t, b.Last, values[len(values)-1].time)
	}
}

func TestByteTicks(t *testing.T) {
	for high, want := range map[float64]string{
		100:     "0 B 16 B 32 B 48 B 64 B 80 B 96 B",
		6 << 30: "0 B 1 GiB 2 GiB 3 GiB 4 GiB 5 GiB 6 GiB",
		3 << 19: "0 B 256 KiB 512 KiB 768 KiB 1 MiB 1.25 MiB 1.5 MiB",
		1:       "0 B 1 B",
	} {
		var got []string
		for _, tick := range byteTicks(high) {
			got = append(got, tick.label)
		}
		require.Equal(t, want, strings.Join(got, " "))
	}
}

func TestSecondTicks(t *testing.T) {
	for high, want := range map[float64]string{
		1.9: "0.0 0.5 1.0 1.5", 0.004: "0.0000 0.0005 0.0010 0.0015 0.0020 0.0025 0.0030 0.0035 0.0040",
		3600: "0 500 1000 1500 2000 2500 3000 3500",
	} {
		var got []string
		for _, tick := range secondTicks(0, high) {
			got = append(got, tick.label)
		}
		require.Equal(t, want, strings.Join(got, " "))
	}
}

// The drawn parts of a line and its gaps are as long as the dashes say, around corners too.
func TestDash(t *testing.T) {
	drawn := dash([]float64{3, 2}, []point{{0, 0}, {4, 0}, {4, 4}, {4, 4}})
	require.Equal(t, [][2]point{{{0, 0}, {3, 0}}, {{4, 1}, {4, 4}}}, drawn)
	require.Empty(t, dash([]float64{3, 2}, []point{{1, 1}}))
}

// Of refusals that are too close to each other for their names, all are drawn and some are named; no name leaves the panel.
func TestRefusalsAreLegible(t *testing.T) {
	b := browse(t, eventtest.Random(2, 4000))
	var out bytes.Buffer
	require.NoError(t, Write(&out, SVG, Input{Browse: b, Title: "many"}))
	named := strings.Count(out.String(), ">out of memory<")
	require.Positive(t, named)
	require.Less(t, named, len(b.OOMs))
	require.Equal(t, len(b.OOMs), strings.Count(out.String(), `stroke="#c92a2a"`))
}

func TestTitleIsCut(t *testing.T) {
	f, err := newTypeface(dpi)
	require.NoError(t, err)
	long := strings.Repeat("python train.py ", 20)
	cut := f.cut(long, titleSize, 200)
	require.LessOrEqual(t, f.width(cut, titleSize), 200.0)
	require.True(t, strings.HasSuffix(cut, "…") && strings.HasPrefix(long, strings.TrimSuffix(cut, "…")), cut)
	require.Equal(t, "short", f.cut("short", titleSize, 200))
	const holder = "train.py:88 main() local trainer.optimizer.state[*]['exp_avg_sq']"
	width := func(s string) float64 { return f.width(s, textSize) }
	require.Equal(t, holder, f.cutName(holder, textSize, width(holder)))
	require.Equal(t, "trainer.optimizer.state[*]['exp_avg_sq']", f.cutName(holder, textSize, width(holder)-1))
	room := width(holder) / 3
	short := f.cutName(holder, textSize, room)
	require.Regexp(t, `^trainer\..*….*avg_sq'\]$`, short)
	require.InDelta(t, room-width("t")/2, width(short), width("m"), "as long as there is room for")
	require.Equal(t, "…", f.cutName(holder, textSize, 0))
	require.Regexp(t, "^train.py:88 Tra.*…$", f.cutName("train.py:88 Trainer.step_of_many", textSize, width("train.py:88 Trainer")))
}
