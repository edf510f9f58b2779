// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"fmt"

	"github.com/gputrace/gputrace/event"
)

// The number of allocations to check before warning about missing stacks: for the first ones all must lack them, later a share.
const (
	stacklessFirst = 100
	stacklessMany  = 1000
	stacklessShare = 2 // 1 / stacklessShare of them
)

// stackless counts allocations without a recorded stack, so that the warning comes before the end of the trace.
type stackless struct {
	seen, without uint64
	reasons       map[event.StackStatus]uint64
	some          bool // enough earlier ones had a stack
	warned        bool
}

// watchStacks warns once when stacks are missing.
func (d *Decoder) watchStacks(e *event.Event, status event.StackStatus) {
	w := &d.stackless
	if w.warned || e.Kind != event.KindAlloc {
		return
	}
	w.take(e.Stack != 0, status)
	if w.due() {
		w.warned = true
		d.warn(w.warning())
	}
}

// Stackless returns the most frequent reason why recent allocations had no stack; any is false when all had one.
func (d *Decoder) Stackless() (why event.StackStatus, any bool) {
	return d.stackless.reason(), d.stackless.without > 0
}

func (w *stackless) take(recorded bool, status event.StackStatus) {
	w.seen++
	if recorded {
		return
	}
	w.without++
	if w.reasons == nil {
		w.reasons = map[event.StackStatus]uint64{}
	}
	w.reasons[status]++
}

// due reports whether to warn. After many allocations of which few lacked a stack, it starts counting again.
func (w *stackless) due() bool {
	switch {
	case w.seen >= stacklessMany && w.without > w.seen/stacklessShare:
		return true
	case w.seen >= stacklessMany:
		*w = stackless{some: true}
		return false
	default:
		return !w.some && w.seen >= stacklessFirst && w.without == w.seen
	}
}

// stacklessHelp is the advice for each reason.
var stacklessHelp = map[event.StackStatus]string{
	event.StatusNoScratch: "the kernel gives the unwinder no memory; gputrace doctor says whether it does so on this machine at all",
	event.StatusLost:      "they do not fit the ring: take a larger one (--ring-size)",
}

// reason returns the most frequent reason.
func (w *stackless) reason() event.StackStatus {
	reason, most := event.StatusOK, uint64(0)
	for status, n := range w.reasons {
		if n > most || n == most && status < reason {
			reason, most = status, n
		}
	}
	return reason
}

// warning returns one line: how many, why, and what to do.
func (w *stackless) warning() error {
	reason := w.reason()
	help, ok := stacklessHelp[reason]
	if !ok {
		help = "gputrace doctor says whether stacks can be taken on this machine"
	}
	return fmt.Errorf("%d of the last %d allocations have no stack (%s): %s", w.without, w.seen, reason, help)
}
