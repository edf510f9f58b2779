// SPDX-License-Identifier: Apache-2.0

package speedscope_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/speedscope"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// decoded is a file as file-format-schema.json of speedscope describes it.
type decoded struct {
	Schema   string `json:"$schema"`
	Exporter string `json:"exporter"`
	Name     string `json:"name"`
	Active   int    `json:"activeProfileIndex"`
	Shared   struct {
		Frames []struct {
			Name string `json:"name"`
			File string `json:"file"`
			Line int    `json:"line"`
		} `json:"frames"`
	} `json:"shared"`
	Profiles []struct {
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Unit    string   `json:"unit"`
		Start   uint64   `json:"startValue"`
		End     uint64   `json:"endValue"`
		Samples [][]int  `json:"samples"`
		Weights []uint64 `json:"weights"`
	} `json:"profiles"`
}

func write(t *testing.T, in speedscope.Input) *decoded {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, speedscope.Write(&buf, in))
	d := json.NewDecoder(&buf)
	d.DisallowUnknownFields()
	var out decoded
	require.NoError(t, d.Decode(&out))
	return &out
}

// TestTotals: each flame graph adds up to the figure of its view.
func TestTotals(t *testing.T) {
	for seed := range uint64(10) {
		trace, err := view.NewTrace(eventtest.Random(seed, 3000), nil)
		require.NoError(t, err)
		end, peak, allocated := trace.End(), trace.Peak(), uint64(0)
		for i := range end.Sites {
			if s := &end.Sites[i]; s.Layer == event.LayerAllocator || s.Layer == event.LayerDevice && !s.Segment {
				allocated += s.Alloc.Bytes
			}
		}
		d := write(t, speedscope.Input{Name: "a", Exporter: "b", Profiles: []speedscope.Profile{
			{Name: "end", View: end}, {Name: "peak", View: peak}, {Name: "allocated", View: end, Measure: view.Allocated},
		}})
		require.Equal(t, []string{"https://www.speedscope.app/file-format-schema.json", "b", "a"}, []string{d.Schema, d.Exporter, d.Name})
		for i, want := range []uint64{end.Total() + end.Overdrawn(), peak.Total() + peak.Overdrawn(), allocated} {
			p := d.Profiles[i]
			require.Equal(t, []string{"sampled", "bytes"}, []string{p.Type, p.Unit})
			require.Len(t, p.Weights, len(p.Samples))
			sum := uint64(0)
			for j, n := range p.Weights {
				require.NotEmpty(t, p.Samples[j])
				for _, frame := range p.Samples[j] {
					require.Less(t, frame, len(d.Shared.Frames))
				}
				sum += n
			}
			require.Equal(t, []uint64{0, want, want}, []uint64{p.Start, p.End, sum}, p.Name)
		}
	}
}

// TestFrames: frames are outermost first, with their places; names are foreign, and more frees than allocations were lost.
func TestFrames(t *testing.T) {
	torch := &event.Module{Path: "/t/lib.so"}
	st := &event.Stack{ID: 1, Frames: []event.Frame{
		{Kind: event.FrameNative, Func: "f\xff</script>", Module: torch}, {Kind: event.FramePython, Func: "main", File: "/a/b.py", Line: 3},
	}}
	count := heap.Count{Objects: 1, Bytes: 512}
	s := &heap.Snapshot{
		Totals: heap.Totals{Accounts: []heap.Account{{PID: 7, Allocated: 500, Live: count, Lost: -12}}},
		Sites:  []heap.Site{{PID: 7, Layer: event.LayerAllocator, Stack: 1, Alloc: count, Inuse: count}},
	}
	v := view.New(s, func(event.StackID) *event.Stack { return st }, nil)
	d := write(t, speedscope.Input{Profiles: []speedscope.Profile{{View: v}}})
	require.EqualValues(t, 512, d.Profiles[0].End)
	require.Equal(t, [][]int{{0, 1, 2}}, d.Profiles[0].Samples)
	require.Equal(t, "[{main (b.py:3) /a/b.py 3} {f\ufffd</script> /t/lib.so 0} {b.py:3 main  0}]", fmt.Sprint(d.Shared.Frames))
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("full")

func TestWriteError(t *testing.T) {
	require.ErrorIs(t, speedscope.Write(fullDisk{}, speedscope.Input{}), errFull)
}
