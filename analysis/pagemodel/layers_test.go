// SPDX-License-Identifier: Apache-2.0

package pagemodel_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// course is memory of one line: how many bytes there are at each of five moments, a second apart.
type course struct {
	line     int // of train.py; 0: no stack
	holder   string
	category phases.Category
	part     int
	bytes    [5]uint64
}

// modelOf is a model of five moments. Each course is allocated and freed in pieces, as it rises and falls.
func modelOf(courses ...course) *pagemodel.Model {
	b := &pagemodel.Model{Frames: []pagemodel.TreeFrame{{Kind: pagemodel.TreeNone, Name: stacks.NoStack}}}
	for i := range 5 {
		b.Moments = append(b.Moments, pagemodel.Moment{Event: uint64(i), Time: uint64(i) * 1e9})
	}
	for i := range 2 {
		b.Parts = append(b.Parts, pagemodel.Part{
			PID: 1, Device: event.Device{Type: event.DeviceCUDA, Index: int8(i)}, PeakMoment: -1,
			Before: make([]uint64, 5), Known: make([]uint64, 5), Lost: make([]int64, 5),
		})
	}
	for _, c := range courses {
		own := int32(0)
		if c.line > 0 {
			own = int32(len(b.Frames))
			b.Frames = append(b.Frames, pagemodel.TreeFrame{Kind: pagemodel.TreeOwn, File: "/job/train.py", Line: c.line, Name: "main"})
		}
		g := pagemodel.Group{Part: c.part, Layer: event.LayerAllocator, Own: own, Category: c.category, Holder: c.holder}
		if g.Holder == "" {
			g.Holder = view.NoHolder
		}
		b.Groups = append(b.Groups, g)
		b.Lifetimes = append(b.Lifetimes, pieces(uint32(len(b.Groups)-1), c.bytes)...)
	}
	return b
}

// pieces is lifetimes that add up to a course: what is there from each moment to each, as layers of a wall.
func pieces(group uint32, bytes [5]uint64) []pagemodel.Lifetimes {
	var out []pagemodel.Lifetimes
	for from := 0; from < 5; from++ {
		had := uint64(0) // of what began before
		for _, l := range out {
			if int(l.Free) > from {
				had += l.Bytes
			}
		}
		for had < bytes[from] {
			to, n := from, bytes[from]-had
			for to < 5 && bytes[to] > had {
				n = min(n, bytes[to]-had)
				to++
			}
			out = append(out, pagemodel.Lifetimes{Group: group, Alloc: uint16(from), Free: uint16(to), Blocks: 1, Bytes: n})
			had += n
		}
	}
	return out
}

// drawn is the layers as lines of text, the lowest first.
func drawn(l *pagemodel.Layers, part int) []string {
	var out []string
	for i, c := range l.Courses(part) {
		out = append(out, fmt.Sprint(l.List[i].Name, " ", l.List[i].Color, " ", c))
	}
	return out
}

func setPeak(b *pagemodel.Model, part, at int, bytes uint64) *pagemodel.Model {
	b.Parts[part].PeakMoment, b.Parts[part].Peak = at, bytes
	return b
}

// What is drawn, in which colour and where: by hand.
func TestLayers(t *testing.T) {
	steady, rising := [5]uint64{60, 60, 60, 60, 60}, [5]uint64{10, 20, 30, 40, 50}
	tests := []struct {
		name  string
		model *pagemodel.Model
		want  []string
	}{
		{
			"by line: what is steady is below; the one that rises has the first colour, as it has 30 on average and grows by 40",
			modelOf(course{line: 7, bytes: rising}, course{line: 3, bytes: steady}),
			[]string{"train.py:3 main 1 [60 60 60 60 60]", "train.py:7 main 0 [10 20 30 40 50]"},
		},
		{
			"by line: 80 on average is more than 30 and 40 of growth",
			modelOf(course{line: 7, bytes: rising}, course{line: 3, bytes: [5]uint64{80, 80, 80, 80, 80}}),
			[]string{"train.py:3 main 0 [80 80 80 80 80]", "train.py:7 main 1 [10 20 30 40 50]"},
		},
		{
			"by holder, as more than half of the peak has one",
			setPeak(modelOf(course{line: 3, holder: "model.weight", bytes: steady}, course{line: 3, bytes: rising}), 0, 3, 100),
			[]string{"model.weight 0 [60 60 60 60 60]", view.NoHolder + " -3 [10 20 30 40 50]"},
		},
		{
			"half is not more than half",
			setPeak(modelOf(course{line: 3, holder: "model.weight", bytes: steady}, course{line: 4, bytes: steady}), 0, 2, 100),
			[]string{"train.py:3 main 0 [60 60 60 60 60]", "train.py:4 main 1 [60 60 60 60 60]"},
		},
		{
			"the highest peak decides, where nothing of it has a holder",
			setPeak(setPeak(modelOf(
				course{line: 3, holder: "model.weight", bytes: [5]uint64{50, 50, 0, 0, 0}}, course{line: 4, part: 1, bytes: [5]uint64{0, 0, 0, 90, 0}},
			), 0, 1, 50), 1, 3, 90),
			[]string{"train.py:3 main 0 [50 50 0 0 0]", "train.py:4 main 1 [0 0 0 90 0]"},
		},
		{
			"by category, as one line has most of it, in three categories",
			modelOf(
				course{line: 3, category: phases.Parameters, bytes: steady},
				course{line: 4, category: phases.Gradients, bytes: [5]uint64{0, 9, 0, 9, 9}},
				course{line: 5, category: phases.Activations, bytes: [5]uint64{0, 20, 0, 20, 0}},
				course{line: 6, category: phases.Temporary, bytes: [5]uint64{0, 0, 0, 0, 1}},
			),
			[]string{"parameters 0 [60 60 60 60 60]", "gradients 1 [0 9 0 9 9]", "activations 2 [0 20 0 20 0]", "temporary 3 [0 0 0 0 1]"},
		},
		{
			"two categories only: by line",
			modelOf(course{line: 3, category: phases.Parameters, bytes: steady},
				course{line: 4, category: phases.Gradients, bytes: [5]uint64{0, 9, 0, 9, 9}}),
			[]string{"train.py:3 main 0 [60 60 60 60 60]", "train.py:4 main 1 [0 9 0 9 9]"},
		},
		{
			"what is never there is not drawn; what has no stack is last",
			modelOf(course{line: 0, bytes: steady}, course{line: 3, bytes: rising}, course{line: 4}),
			[]string{"train.py:3 main 0 [10 20 30 40 50]", stacks.NoStack + " -3 [60 60 60 60 60]"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, drawn(tt.model.Layers(), -1))
		})
	}
}

// Eight rows have colours, by rank; all beyond them are one layer.
func TestLayersOther(t *testing.T) {
	var courses []course
	for i := range 11 {
		n := uint64(100 * (i + 1))
		courses = append(courses, course{line: i + 1, bytes: [5]uint64{n, n, n, n, n}})
	}
	got := drawn(modelOf(courses...).Layers(), -1)
	require.Len(t, got, pagemodel.Colors+1)
	require.Equal(t, "train.py:11 main 0 [1100 1100 1100 1100 1100]", got[0])
	require.Equal(t, "train.py:4 main 7 [400 400 400 400 400]", got[7])
	require.Equal(t, fmt.Sprint("smaller rows ", pagemodel.ColorOther, " [600 600 600 600 600]"), got[8], "100, 200 and 300")
}

// What is known of the totals only is drawn too: what was there before the first event at the bottom, what was lost with what has no name.
// Of the former, what has a holder is drawn under its name.
func TestLayersBefore(t *testing.T) {
	make2 := func(holder string) *pagemodel.Model {
		b := modelOf(course{line: 3, holder: holder, category: phases.Gradients, bytes: [5]uint64{10, 20, 10, 20, 10}},
			course{line: 4, part: 1, bytes: [5]uint64{0, 0, 5, 5, 5}})
		b.Parts[0].Before = []uint64{100, 100, 100, 90, 90}
		b.Parts[0].Lost = []int64{0, 0, 3, 3, -2}
		b.Parts[0].BeforeFor = []pagemodel.BeforeFor{{Holder: "model.weight", Category: phases.Parameters, Blocks: []uint64{1, 1, 1, 1, 1},
			Bytes: []uint64{70, 70, 70, 60, 60}}}
		b.Parts[1].Before = []uint64{event.Unknown, event.Unknown, 8, 8, 8}
		return b
	}
	require.Equal(t, []string{
		stacks.BeforeAttach + " -1 [30 30 38 38 38]", "model.weight 0 [70 70 70 60 60]", "cache 1 [10 20 10 20 10]", "not known -3 [0 0 8 8 3]",
	}, drawn(make2("cache").Layers(), -1), "by holder: 80 of 113 at the end")
	b := make2("")
	b.Parts[0].BeforeFor[0].Bytes = []uint64{20, 20, 20, 20, 20}
	l := b.Layers()
	require.Equal(t, []string{
		stacks.BeforeAttach + " -1 [100 100 108 98 98]", "train.py:3 main 0 [10 20 10 20 10]", "train.py:4 main 1 [0 0 5 5 5]",
		stacks.LostEvents + " -3 [0 0 3 3 -2]",
	}, drawn(l, -1), "by line")
	require.Equal(t, []string{
		stacks.BeforeAttach + " -1 [0 0 8 8 8]", "train.py:3 main 0 [0 0 0 0 0]", "train.py:4 main 1 [0 0 5 5 5]",
		stacks.LostEvents + " -3 [0 0 0 0 0]",
	}, drawn(l, 1), "the second device alone, in the same layers")
	b = make2("")
	b.Parts[0].BeforeFor[0].Bytes = []uint64{20, 20, 20, 20, 20}
	b.Groups[1].Category = phases.Activations
	b.Groups = append(b.Groups, pagemodel.Group{Layer: event.LayerAllocator, Own: 1, Category: phases.Temporary, Holder: view.NoHolder})
	b.Lifetimes = append(b.Lifetimes, pagemodel.Lifetimes{Group: 2, Alloc: 0, Free: 5, Blocks: 1, Bytes: 500})
	require.Equal(t, []string{
		stacks.BeforeAttach + " -1 [80 80 88 78 78]", "temporary 0 [500 500 500 500 500]", "parameters 1 [20 20 20 20 20]",
		"gradients 2 [10 20 10 20 10]", "activations 3 [0 0 5 5 5]", stacks.LostEvents + " -3 [0 0 3 3 -2]",
	}, drawn(b.Layers(), -1), "by category: so is what is known of a holder")
}

// Whatever the names are, the layers of each moment add up to the whole: blocks, what was before, and what was lost.
func TestLayersAddUp(t *testing.T) {
	training := eventtest.NewJob()
	for range 30 {
		training.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		training.Alloc(eventtest.Adam, 1<<12)
	}
	before, err := pagemodel.New(attached(t), nil)
	require.NoError(t, err)
	for name, b := range map[string]*pagemodel.Model{
		"training": browse(t, &training.Stream, nil), "random": browse(t, eventtest.Random(11, 3000), nil), "attached": before,
	} {
		t.Run(name, func(t *testing.T) {
			l := b.Layers()
			for part := -1; part < len(b.Parts); part++ {
				got := make([]float64, len(b.Moments))
				for _, c := range l.Courses(part) {
					for at, bytes := range c {
						got[at] += bytes
					}
				}
				for at := range b.Moments {
					require.InDelta(t, wholeAt(b, part, at), got[at], 0.5, "part %d, moment %d", part, at)
				}
			}
			require.LessOrEqual(t, len(l.List), pagemodel.Colors+3)
		})
	}
}

// wholeAt is what a part has at a moment, or all of them.
func wholeAt(b *pagemodel.Model, part, at int) float64 {
	sum := 0.0
	for i := range b.Parts {
		if part >= 0 && part != i {
			continue
		}
		if sum += float64(b.Parts[i].Lost[at]); b.Parts[i].Before[at] != event.Unknown {
			sum += float64(b.Parts[i].Before[at])
		}
	}
	for _, f := range b.Lifetimes {
		g := &b.Groups[f.Group]
		torch := g.Layer == event.LayerAllocator && g.Origin != heap.OriginBefore
		if (torch || g.Counted()) && int(f.Alloc) <= at && at < int(f.Free) && (part < 0 || g.Part == part) {
			sum += float64(f.Bytes)
		}
	}
	return sum
}
