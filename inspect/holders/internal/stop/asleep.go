// SPDX-License-Identifier: Apache-2.0

package stop

import (
	"maps"
	"strings"
)

// Asleep is a moment at which every thread of a process slept: how often each had been taken off a CPU until then. A thread that
// sleeps at two moments and was not taken off one between them did not run between them. nil: a thread ran, or it is not known.
type Asleep map[int]string

// switchesIn takes the state of a thread and how often it left a CPU, of its own will or not, from its status (proc(5)).
func switchesIn(status string) (state, switches string, ok bool) {
	_, state, found := strings.Cut(status, "\nState:\t")
	_, switches, counted := strings.Cut(status, "\nvoluntary_ctxt_switches:\t")
	state, _, _ = strings.Cut(state, "\n")
	return state, switches, found && counted
}

// Until reports whether no thread ran from one moment to another.
func (a Asleep) Until(b Asleep) bool { return len(a) > 0 && maps.Equal(a, b) }
