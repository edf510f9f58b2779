// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// free is an event by which a thread frees something.
func free(tid uint32, stack event.StackID) *event.Event {
	return &event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, PID: 1, TID: tid, Stack: stack}
}

// trained goes through steps of a training loop, with the frees that act makes at each of its points.
func trained(steps int, act func(e *Ends[string], at string)) *Ends[string] {
	e := NewEnds[string](New(nil, nil, func(id event.StackID) *event.Stack { return step[id] }))
	alloc := func(stack event.StackID, tid uint32, at string) {
		e.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, PID: 1, TID: tid, Stack: stack})
		act(e, at)
	}
	for range steps {
		alloc(inputStack, mainThread, "input")
		alloc(forwardStack, mainThread, "forward")
		alloc(forwardStack, mainThread, "forward again")
		alloc(backwardStack, autogradThread, "backward")
		alloc(adamStack, mainThread, "optimizer")
	}
	return e
}

func TestEnds(t *testing.T) {
	for name, row := range map[string]struct {
		at    string
		event *event.Event
		want  Phase
	}{
		"autograd's thread":             {"backward", free(autogradThread, 0), Backward},
		"autograd's thread, afterwards": {"optimizer", free(autogradThread, 0), Backward}, // it does nothing else
		"between two of a phase":        {"forward", free(mainThread, 0), Forward},
		"between two phases":            {"input", free(mainThread, 0), Unknown},
		"while another thread goes on":  {"backward", free(mainThread, 0), Unknown},
		"with a stack":                  {"input", free(mainThread, adamStack), Optimizer},
		"unseen thread":                 {"forward", free(99, 0), Unknown},
	} {
		e := trained(10, func(e *Ends[string], at string) {
			if at == row.at {
				e.Freed("a", row.event)
			}
		})
		require.Equal(t, row.want, e.Usual([]string{"a", "none"}), name)
		require.Equal(t, Unknown, e.Usual([]string{"none"}), name)
	}
}

// TestFewEnds: it takes five frees, nine of ten alike.
func TestFewEnds(t *testing.T) {
	for n, want := range map[int]Phase{4: Unknown, 5: Backward} {
		e := trained(n, func(e *Ends[string], at string) {
			if at == "backward" {
				e.Freed("a", free(autogradThread, 0))
			}
		})
		require.Equal(t, want, e.Usual([]string{"a"}), n)
	}
	for others, want := range map[int]Phase{2: Backward, 3: Unknown} {
		i := 0
		e := trained(20, func(e *Ends[string], at string) {
			if at != "backward" {
				return
			}
			e.Freed("a", free(autogradThread, 0))
			if i++; i <= others {
				e.Freed("b", free(mainThread, adamStack))
			}
		})
		require.Equal(t, want, e.Usual([]string{"a", "b"}), others)
	}
}
