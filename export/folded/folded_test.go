// SPDX-License-Identifier: Apache-2.0

package folded_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/folded"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/internal/size"
)

// parse reads the format as flamegraph.pl does: the number is what follows the last space.
func parse(t *testing.T, text string) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		i := strings.LastIndexByte(line, ' ')
		require.Positive(t, i, line)
		n, err := strconv.ParseUint(line[i+1:], 10, 64)
		require.NoError(t, err, line)
		require.NotContains(t, out, line[:i], "a line for each stack")
		out[line[:i]] = n
	}
	return out
}

func write(t *testing.T, v *view.View) map[string]uint64 {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, folded.Write(&buf, v))
	return parse(t, buf.String())
}

// fromProfile folds what a profile of the same view has.
func fromProfile(t *testing.T, v *view.View) map[string]uint64 {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, pprof.Write(&buf, pprof.Input{View: v}))
	p, err := profile.Parse(&buf)
	require.NoError(t, err)
	out := map[string]uint64{}
	for _, s := range p.Sample {
		var names []string
		for i := len(s.Location) - 1; i >= 0; i-- {
			line := s.Location[i].Line[0]
			name := line.Function.Name
			if file := line.Function.Filename; file != "" {
				name = fmt.Sprintf("%s (%s:%d)", name, file[strings.LastIndexByte(file, '/')+1:], line.Line)
			}
			names = append(names, strings.ReplaceAll(name, ";", ":"))
		}
		out[strings.Join(names, ";")] += uint64(s.Value[3])
	}
	return out
}

// TestSameAsProfile: stack by stack the bytes are those of the profile of the same moment, and the allocator's and driver's own
// totals all together.
func TestSameAsProfile(t *testing.T) {
	for seed := range uint64(20) {
		s := eventtest.Random(seed, 3000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		at, err := trace.At(s.Events[1500].Time)
		require.NoError(t, err)
		for _, v := range []*view.View{trace.End(), trace.Peak(), at} {
			got := write(t, v)
			sum := uint64(0)
			for _, n := range got {
				sum += n
			}
			require.Equal(t, v.Total()+v.Overdrawn(), sum)
			require.Equal(t, fromProfile(t, v), got)
		}
	}
}

// TestLosses: when events were lost, the sum is still the allocators' total, but for what cannot be shown.
func TestLosses(t *testing.T) {
	overdrawn := 0
	for seed := range uint64(20) {
		s := eventtest.Random(seed, 2000)
		rng := rand.New(rand.NewPCG(seed, 3))
		s.Events = slices.DeleteFunc(s.Events, func(event.Event) bool { return rng.IntN(10) == 0 })
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		sum := uint64(0)
		for _, n := range write(t, trace.End()) {
			sum += n
		}
		require.Equal(t, trace.End().Total()+trace.End().Overdrawn(), sum)
		if trace.End().Overdrawn() > 0 {
			overdrawn++
		}
	}
	require.NotZero(t, overdrawn)
}

// TestNames: names come from the program that is watched, and stay within their frame.
func TestNames(t *testing.T) {
	st := &event.Stack{ID: 1, Frames: []event.Frame{
		{Kind: event.FrameNative, Func: "std::f(int;\n 12)"},
		{Kind: event.FramePython, Func: "", File: "/a/b;c.py", Line: 3},
		{Kind: event.FramePython, Func: "g\xff\x1b[2J 99\u2028", File: "x y.py"},
	}}
	count := heap.Count{Objects: 1, Bytes: 512}
	s := &heap.Snapshot{
		Totals: heap.Totals{Accounts: []heap.Account{{PID: 7, Allocated: 500, Live: count, Lost: -12}}},
		Sites:  []heap.Site{{PID: 7, Layer: event.LayerAllocator, Stack: 1, Alloc: count, Inuse: count}},
	}
	v := view.New(s, func(event.StackID) *event.Stack { return st }, nil)
	require.Equal(t, map[string]uint64{
		"g\ufffd\ufffd[2J 99\ufffd (x y.py);[no name] (b:c.py:3);std::f(int:  12);b:c.py:3 ": 512,
	}, write(t, v))
	require.EqualValues(t, 12, v.Overdrawn())
}

// TestFlameGraph: the picture has every stack of the lines, with its bytes in the title of its innermost frame, and loads nothing.
func TestFlameGraph(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(3, 3000), nil)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, folded.WriteSVG(&b, trace.End(), "at <the> end"))
	text := b.String()
	require.Contains(t, text, "by stack, at &lt;the&gt; end")
	require.NotContains(t, text, "<script")
	require.Equal(t, 1, strings.Count(text, "http"), "its namespace")
	require.Contains(t, text, "<title>all: "+size.Text(trace.End().Total()+trace.End().Overdrawn())+", 100.0 %</title>")
	titles := map[string]bool{}
	d := xml.NewDecoder(&b)
	for {
		token, err := d.Token()
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "title" {
			var title string
			require.NoError(t, d.DecodeElement(&title, &e))
			titles[title[:strings.LastIndex(title, ",")]] = true
		}
	}
	leaves := 0
	for stack, n := range write(t, trace.End()) {
		name := stack[strings.LastIndexByte(stack, ';')+1:]
		if titles[name+": "+size.Text(n)] {
			leaves++
		}
	}
	require.Greater(t, leaves, 3, "other stacks go on, or are too narrow")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("full")

func TestWriteError(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 100), nil)
	require.NoError(t, err)
	require.ErrorIs(t, folded.Write(fullDisk{}, trace.End()), errFull)
}
