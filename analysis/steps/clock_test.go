// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestClock: a step begins where a thread comes to the line from elsewhere, however much it allocates there; a
// stack that recurs begins one each time. What has no Python frame says nothing of where the thread is.
func TestClock(t *testing.T) {
	st := map[event.StackID]*event.Stack{
		1: eventtest.Stack("lib.so!f /a.py:3:inner /a.py:1:main"), 2: eventtest.Stack("lib.so!f /a.py:4:inner /a.py:1:main"),
		3: eventtest.Stack("lib.so!f /a.py:2:main"), 4: eventtest.Stack("lib.so!f"),
	}
	resolve := func(id event.StackID) *event.Stack { return st[id] }
	type see struct {
		stack event.StackID
		tid   uint32
		begin bool
	}
	run := func(on mark, all []see) {
		c := newClock(resolve, on)
		for i, s := range all {
			require.Equal(t, s.begin, c.see(&event.Event{Kind: event.KindAlloc, Stack: s.stack, TID: s.tid}), "%d: %+v", i, s)
		}
		require.False(t, c.see(&event.Event{Kind: event.KindFree, Stack: 1, TID: 99}))
		require.False(t, c.see(&event.Event{Kind: event.KindAlloc, TID: 99}))
	}
	run(mark{source: SourcePeriod, place: placeOf(0, &st[1].Frames[2])}, []see{
		{3, 7, false}, {1, 7, true}, {2, 7, false}, {4, 7, false}, {1, 7, false},
		{3, 8, false}, {1, 8, true}, {3, 8, false}, // another thread
		{1, 7, false}, {3, 7, false}, {4, 7, false}, {5, 7, false}, {2, 7, true},
	})
	run(mark{source: SourcePeriod, stack: 1}, []see{{3, 7, false}, {1, 7, true}, {1, 7, true}, {4, 7, false}, {2, 7, false}, {1, 7, true}})
	run(mark{source: SourcePeriod, stack: 4}, []see{{4, 7, true}, {4, 7, true}, {1, 7, false}})
}
