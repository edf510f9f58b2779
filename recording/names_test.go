// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// written is the tables of one stack, and what reads them.
func written(t *testing.T, frames ...event.Frame) (payload []byte, st *event.Stack) {
	t.Helper()
	st = &event.Stack{ID: 9, Frames: frames}
	n := newNameWriter()
	n.stack(st.ID, func(event.StackID) *event.Stack { return st })
	return n.take(), st
}

// TestNamesOfOlderVersions: version 1.0 had no table of inlined frames. Its payload is that of now without the table's count.
func TestNamesOfOlderVersions(t *testing.T) {
	payload, want := written(t, event.Frame{Kind: event.FrameNative, Func: "f", Addr: 1},
		event.Frame{Kind: event.FrameNative, Func: "g", Addr: 2})
	require.Zero(t, payload[len(payload)-1])
	n := newNames()
	require.NoError(t, n.read(payload[:len(payload)-1]))
	require.Equal(t, want, n.stack(want.ID))
}

func TestInlinedFrames(t *testing.T) {
	frame := func(name string, line int, inlined bool) event.Frame {
		return event.Frame{Kind: event.FrameNative, Func: name, File: "a.h", Line: line, Addr: 7, Inlined: inlined}
	}
	payload, want := written(t, frame("f", 1, true), frame("f", 1, false), frame("g", 2, true), frame("h", 3, false))
	n := newNames()
	require.NoError(t, n.read(payload))
	require.Equal(t, want, n.stack(want.ID))
	payload[len(payload)-1] = 99 // the number of a frame that is not there
	require.Error(t, newNames().read(payload))
}
