// SPDX-License-Identifier: Apache-2.0

package pagemodel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// byCategory is what the model has in use at a moment.
func byCategory(b *pagemodel.Model, at int) map[string]int64 {
	out := map[string]int64{}
	for i := range b.Parts {
		p := &b.Parts[i]
		rest := p.Lost[at]
		if p.Before[at] != event.Unknown {
			rest += int64(p.Before[at])
		}
		for _, f := range p.BeforeFor {
			out[string(f.Category)] += int64(f.Bytes[at])
			rest -= int64(f.Bytes[at])
		}
		out[string(phases.NoCategory)] += rest
	}
	for _, l := range b.Lifetimes {
		if g := &b.Groups[l.Group]; g.Counted() && int(l.Alloc) <= at && at < int(l.Free) {
			out[string(g.Category)] += int64(l.Bytes)
		}
	}
	return out
}

// TestCategories: at each moment the page has the same bytes for each purpose as the tables, to the byte, and all of them.
func TestCategories(t *testing.T) {
	training := eventtest.NewJob()
	for i := range 30 {
		training.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		if i%10 == 0 {
			training.Alloc(eventtest.Adam, 1<<12)
			training.Alloc(eventtest.Forward, 1<<10)
		}
	}
	for name, s := range map[string]*eventtest.Stream{"training": &training.Stream, "random": eventtest.Random(11, 3000)} {
		t.Run(name, func(t *testing.T) {
			trace := traceOf(t, s)
			held, n := map[heap.BlockKey]view.HeldBlock{}, 0
			for b := range applied(s, len(s.Events)).Blocks() {
				if n++; n%3 == 0 {
					held[b.Key()] = view.HeldBlock{Holder: "model.weight", Category: phases.Parameters, Bytes: b.Size}
				}
			}
			trace.SetHeld(held)
			b, err := pagemodel.New(trace, nil)
			require.NoError(t, err)
			// What was allocated on a device before the first event of that is known to the page from the beginning.
			for at := len(b.Moments) / 4; at < len(b.Moments); at += 25 {
				v, err := trace.Select(view.Selection{Moment: moment.Moment{Kind: moment.SinceStart, Time: b.Moments[at].Time}, Detail: true})
				require.NoError(t, err)
				want := map[string]int64{}
				for _, sum := range v.SumBy(view.ByCategory) {
					want[sum.Text] = sum.Bytes
				}
				got := byCategory(b, at)
				for c, bytes := range got {
					require.Equal(t, want[c], bytes, "moment %d: %s", at, c)
				}
				for c, bytes := range want {
					require.Equal(t, bytes, got[c], "moment %d: %s", at, c)
				}
			}
		})
	}
}

// TestNewerBlocks: what was allocated after holders were read has what held most blocks of its line; of another line, or one whose blocks
// several things held, it has none.
func TestNewerBlocks(t *testing.T) {
	job := eventtest.NewJob()
	lines := []string{eventtest.Report + " /a/train.py:16:main", eventtest.Report + " /a/train.py:17:main",
		eventtest.Report + " /a/train.py:18:main"}
	for range 20 {
		for _, line := range lines {
			job.Alloc(line, 512)
		}
	}
	trace := traceOf(t, &job.Stream)
	held, n := map[heap.BlockKey]view.HeldBlock{}, map[event.StackID]int{}
	for b := range applied(&job.Stream, 30).Blocks() { // the first 10 of each line
		n[b.Stack]++
		switch {
		case b.Stack == job.ID(lines[0]) && n[b.Stack] > 1:
			held[b.Key()] = view.HeldBlock{Holder: "losses[0..9]", Bytes: b.Size}
		case b.Stack == job.ID(lines[0]): // was read, and nothing was found
			held[b.Key()] = view.HeldBlock{Bytes: b.Size}
		case b.Stack == job.ID(lines[1]):
			held[b.Key()] = view.HeldBlock{Holder: []string{"x", "y"}[n[b.Stack]%2], Bytes: b.Size}
		}
	}
	trace.SetHeld(held)
	b, err := pagemodel.New(trace, nil)
	require.NoError(t, err)
	got := map[string]uint64{}
	for _, l := range b.Lifetimes {
		got[b.Groups[l.Group].Holder] += l.Bytes
	}
	require.Equal(t, map[string]uint64{"losses[0..9]": 19 * 512, "x": 5 * 512, "y": 5 * 512, view.NoHolder: 31 * 512}, got)
	require.EqualValues(t, 10*512, b.Inferred)
}
