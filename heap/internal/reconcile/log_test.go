// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// silent is an allocator that is in no list, so its events have no totals.
var silent = event.Device{Type: event.DeviceCUDA.Of(7)}

func made(time uint64, kind event.Kind, addr, size uint64) *event.Event {
	return &event.Event{Time: time, Kind: kind, Device: silent, Addr: addr, Size: size}
}

// TestLog: frees are logged by address, and changes of the sum after an observation are added to its total.
func TestLog(t *testing.T) {
	logs := Logs{}
	l := logs.At(silent)
	for _, e := range []*event.Event{
		made(9, event.KindAlloc, 1, 1000), made(13, event.KindAlloc, 2, 30),
		made(14, event.KindFree, 1, 10), made(15, event.KindFree, 3, event.Unknown),
		made(16, event.KindOutOfMemory, 0, 99),
	} {
		require.True(t, l.Note(e))
	}
	require.Same(t, l, logs.At(silent))
	require.Empty(t, logs.At(event.Device{}).changes)
	require.Equal(t, map[uint64]struct{}{3: {}}, l.Freed(15))
	for _, tt := range []struct {
		from, to, allocated uint64
		want                uint64
		why                 string
		counted             uint64
	}{
		{from: 8, to: 12, counted: 10, allocated: 100, want: 120},
		{from: 8, to: 12, counted: 9, allocated: 100, why: "an event of +1000 B came during the observation"},
		{10, 12, 100, 120, "", 0},
		{10, 13, 100, 0, "an event of +30 B came during the observation", 0},
		{9, 12, 100, 0, "an event of +1000 B came during the observation", 0},
		{14, 14, 100, 0, "an event of -10 B came during the observation", 0},
		{17, 18, 100, 100, "", 0},
		{10, 12, 0, 20, "", 0},
		{10, 12, u, 0, "the allocator's total moved", 0},
	} {
		got, err := l.Total(&event.Observation{From: tt.from, To: tt.to, Allocated: tt.allocated, Counted: tt.counted})
		require.Equal(t, tt.want, got)
		if tt.why != "" {
			require.EqualError(t, err, tt.why)
		}
	}
	_, err := (&Log{changes: []change{{5, -101}}}).Total(&event.Observation{From: 1, To: 2, Allocated: 100})
	require.EqualError(t, err, "more was freed than there was")
}

// TestLogIsBounded: PyTorch's events have totals, so only its frees are logged, and not without end.
func TestLogIsBounded(t *testing.T) {
	l := &Log{}
	e := made(1, event.KindFree, 1, 1)
	e.Device = event.Device{Type: event.DeviceCUDA}
	require.True(t, l.Note(e))
	require.Empty(t, l.changes)
	l.frees = make([]free, maxLogged)
	require.False(t, l.Note(e))
	require.Len(t, l.frees, maxLogged)
	require.False(t, (&Log{changes: make([]change, maxLogged)}).Note(made(1, event.KindAlloc, 1, 1)))
}
