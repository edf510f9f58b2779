// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer/hook"
)

// TestDescribeCall: what a call was given and gave back, as an event.
func TestDescribeCall(t *testing.T) {
	row := &hook.Row{Layer: event.LayerDevice, Addr: hook.Operand{From: hook.FromOut}, Dims: make([]hook.Operand, 2)}
	row.Bytes = func(d []uint64) uint64 { return d[0] * d[1] }
	row.Where = func(d []uint64) event.Layer { return event.LayerHost }
	values := &[maxValues]uint64{1, 2, 3, 10, 20}
	e := event.Event{Kind: event.KindAlloc, Addr: 7, Size: event.Unknown, Layer: event.LayerDevice, Device: event.Device{Index: -1}}
	describeCall(&e, row, values)
	require.Equal(t, event.Event{Kind: event.KindAlloc, Addr: 7, Size: 200, Layer: event.LayerHost, Device: event.Device{Index: -1}}, e)

	row = &hook.Row{Ordinal: hook.Operand{From: hook.FromArg32}}
	for v, want := range map[uint64]int8{0: 0, 127: 127, 128: -1, event.Unknown: -1} {
		e = event.Event{Kind: event.KindReset, Addr: event.Unknown, Size: event.Unknown}
		values[bpf.TraceOperandNameVALUE_DEVICE] = v
		describeCall(&e, row, values)
		require.Equal(t, event.Event{Kind: event.KindReset, Size: event.Unknown, Device: event.Device{Index: want}}, e)
	}
}
