// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// inlinedView has one block whose stack is a call three functions deep in one place of the code, below a recursive one.
func inlinedView() *view.View {
	at := func(name string, line int, inlined bool, offset uint64) event.Frame {
		f := native(nccl, offset, name, name)
		f.File, f.Line, f.StartLine, f.Inlined = "/src/comm.cc", line, line-1, inlined
		return f
	}
	st := &event.Stack{ID: 1, Frames: []event.Frame{
		report, block,
		at("innermost", 10, true, 0x40), at("middle", 20, true, 0x40), at("outer", 30, false, 0x40),
		at("outer", 30, false, 0x40), // it calls itself: the same address, another frame
		at("innermost", 10, true, 0x80), at("plain", 40, false, 0x80),
		native(torch, 0x10, "lineless", "lineless"), module,
	}}
	r := &recorder{heap.New(), map[event.Device]uint64{}, 1 << 40}
	r.torch(7, cuda0, 1, 4096)
	return view.New(r.h.Snapshot(), func(event.StackID) *event.Stack { return st }, nil)
}

func TestInlinedFrames(t *testing.T) {
	file, p := write(t, func(in *Input) { in.View, in.Detail = inlinedView(), DetailVisible })
	var got []string
	for _, l := range p.Sample[0].Location {
		var names []string
		for _, line := range l.Line {
			names = append(names, line.Function.Name)
		}
		got = append(got, strings.Join(names, " in "))
	}
	require.Equal(t, []string{"innermost in middle in outer", "outer", "innermost in plain", "lineless", "<module>"}, got)
	require.EqualValues(t, 20, p.Sample[0].Location[0].Line[1].Line)
	for _, m := range p.Mapping {
		require.Equal(t, m.File == nccl.Path, m.HasInlineFrames, m.File)
		require.Equal(t, m.File == nccl.Path || m.File == pythonMapping, m.HasLineNumbers, m.File)
	}

	out, err := exec.Command("go", "tool", "pprof", "-sample_index=inuse_space", "-traces", "-lines", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "innermost /src/comm.cc:10 (inline)")
	require.Contains(t, string(out), "middle /src/comm.cc:20 (inline)")
	require.NotContains(t, string(out), "outer /src/comm.cc:30 (inline)")
}

// TestInlinedFramesAgain: a profile that is read back says the same of its frames.
func TestInlinedFramesAgain(t *testing.T) {
	_, p := write(t, func(in *Input) { in.View, in.Detail = inlinedView(), DetailVisible })
	frames, _ := framesOf(p.Sample[0])
	var inlined []string
	for _, f := range frames {
		if f.Inlined {
			inlined = append(inlined, f.Func)
		}
	}
	require.Equal(t, []string{"innermost", "middle", "innermost"}, inlined)
}
