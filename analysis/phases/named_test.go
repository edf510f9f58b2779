// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestNamedByTheProgram: gputrace.phase names what people see, the innermost call first, and leaves the phase by the rules as it is.
func TestNamedByTheProgram(t *testing.T) {
	const file = " /usr/lib/python3/site-packages/gputrace/_record.py:61:"
	for stack, want := range map[string]Phase{
		linear + call + file + "phase#rollout" + main:                               "rollout",
		linear + file + "phase#inner " + call + file + "phase#outer" + main:         "inner",
		linear + call + file + "phase#" + strings.Repeat("é", longestName) + main:   Phase(strings.Repeat("é", longestName)),
		linear + call + file + "phase#" + strings.Repeat("e", longestName+1) + main: Forward,
		linear + call + file + "phase#" + main:                                      Forward,
		linear + call + file + "phase#a\x1b[2J" + main:                              Forward,
		linear + call + file + "marked" + main:                                      Forward,
		linear + call + " /home/a/train.py:61:phase#rollout" + main:                 Forward,
		linear + call + main: Forward,
	} {
		st := eventtest.Stack(stack)
		for i := range st.Frames {
			st.Frames[i].Func = strings.ReplaceAll(st.Frames[i].Func, "#", " ")
		}
		c := New(nil, nil, func(event.StackID) *event.Stack { return st })
		require.Equal(t, want, c.Shown(1), stack)
		require.Equal(t, Forward, c.Of(1).Phase, stack)
	}
	require.Equal(t, Unknown, New(nil, nil, func(event.StackID) *event.Stack { return nil }).Shown(1))
}

// TestNamedSpans: a phase that the program names is one of those that follow each other.
func TestNamedSpans(t *testing.T) {
	var s Spans
	for i, p := range []Phase{"rollout", "rollout", Forward, Other, "rollout"} {
		s.See(uint64(i+1), 1, p)
	}
	require.Equal(t, []Span{{"rollout", 1, 2}, {Forward, 3, 3}, {"rollout", 5, 5}}, s.Take(9))
}
