// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
)

// TestStackless: it is said once, as soon as it is certain, and why; a few without a stack are no reason.
func TestStackless(t *testing.T) {
	const none, ok = event.StatusNoScratch, event.StatusOK
	for name, c := range map[string]struct {
		status func(i int) event.StackStatus
		at     int // how many allocations had come when it was said; 0: it was not
		says   string
	}{
		"all have one": {func(int) event.StackStatus { return ok }, 0, ""},
		"none of the first": {func(int) event.StackStatus { return none }, 100,
			"100 of the last 100 allocations have no stack (no scratch): the kernel gives the unwinder no memory"},
		"one of the first":         {func(i int) event.StackStatus { return pick(i == 50, ok, none) }, 1000, "999 of the last 1000"},
		"half":                     {func(i int) event.StackStatus { return pick(i%2 == 0, ok, none) }, 0, ""},
		"two thirds, by the ring":  {func(i int) event.StackStatus { return pick(i%3 == 0, ok, event.StatusLost) }, 1000, "--ring-size"},
		"later on":                 {func(i int) event.StackStatus { return pick(i < 2500, ok, none) }, 4000, "no scratch"},
		"not known what":           {func(int) event.StackStatus { return event.StatusBadRule }, 100, "gputrace doctor"},
		"the most frequent reason": {func(i int) event.StackStatus { return pick(i%4 == 0, event.StatusLost, none) }, 100, "(no scratch)"},
	} {
		t.Run(name, func(t *testing.T) {
			at := 0
			var warned []error
			d := New(&Options{Warn: func(err error) { warned = append(warned, err) }})
			for i := range 10_000 {
				status := c.status(i)
				d.watchStacks(&event.Event{Kind: event.KindFree}, none) // of frees nobody asked for
				d.watchStacks(&event.Event{Kind: event.KindAlloc, Stack: event.StackID(pick(status == ok, 7, 0))}, status)
				if len(warned) > 0 {
					require.Zero(t, at, "said twice")
					require.Len(t, warned, 1)
					require.ErrorContains(t, warned[0], c.says)
					at, warned = i+1, nil
				}
			}
			require.Equal(t, c.at, at)
		})
	}
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// TestStacklessEvents has the kernel's events come without a stack.
func TestStacklessEvents(t *testing.T) {
	var warned []error
	d := New(&Options{Warn: func(err error) { warned = append(warned, err) }})
	p := d.NewProcess(nil)
	for range stacklessFirst {
		p.event(&bpf.TraceRecordEvent{Kind: uint8(event.KindAlloc), Layer: uint8(event.LayerAllocator),
			StackStatus: uint8(event.StatusNoScratch)})
	}
	require.Len(t, warned, 1)
	require.ErrorContains(t, warned[0], "100 of the last 100 allocations have no stack (no scratch)")
	why, any := d.Stackless()
	require.True(t, any)
	require.Equal(t, event.StatusNoScratch, why)
}
