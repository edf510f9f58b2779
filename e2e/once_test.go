// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestOnce: whatever becomes of a call, its memory is counted once, and as long as it is allocated. Threads allocate and free small
// pieces whose addresses come again at once, calls fail, and calls are left on the way: by the end of their thread or by
// longjmp, before the driver is reached, in it, and when it has done its work. (An exception cannot pass a function whose
// return is traced: see docs/use/known-issues.md.)
func TestOnce(t *testing.T) {
	tests := []struct {
		name string
		args []string
		env  []string
		// leaves: calls are left on the way.
		leaves bool
	}{
		{"race", []string{"--race", "--threads", "8", "--rounds", "400"}, nil, false},
		{"race, failing", []string{"--race", "--threads", "8", "--rounds", "400"}, failing, false},
		{"die", []string{"--die", "--threads", "4", "--rounds", "200"}, nil, true},
		{"die, failing", []string{"--die", "--threads", "4", "--rounds", "200"}, failing, true},
		{"jump", []string{"--jump", "--threads", "4", "--rounds", "400"}, nil, true},
		{"jump, failing", []string{"--jump", "--threads", "1", "--rounds", "1000"}, failing, true},
	}
	for _, p := range callPrograms {
		for _, tt := range tests {
			t.Run(p.name+" "+tt.name, func(t *testing.T) {
				r := runCalls(t, p.name, options(), tt.env, tt.args...)
				requireActs(t, lasting(r.calls.acts()), lasting(actsOf(r.events)))
				r.requireNames(t)
				for _, d := range r.requireLive(t).Totals().Drivers {
					require.Zero(t, d.LostFrees, "%+v", d)
					require.Zero(t, d.Doubtful, "%+v", d)
				}
				left := slices.IndexFunc(r.made, func(m madeCall) bool { return m.left })
				require.Equal(t, tt.leaves, left >= 0)
			})
		}
	}
}

// lasting leaves out what was undone: a call that was left before it did anything is not in the ledger.
func lasting(acts map[uint32][]act) map[uint32][]act {
	out := map[uint32][]act{}
	for tid, all := range acts {
		var kept []act
		for _, a := range all {
			if a.kind != event.KindFreeFailed {
				kept = append(kept, a)
				continue
			}
			for i := len(kept) - 1; i >= 0; i-- {
				if k := &kept[i]; retires(k.kind) && k.object == a.object && k.addr == a.addr {
					kept = slices.Delete(kept, i, i+1)
					break
				}
			}
		}
		if len(kept) > 0 {
			out[tid] = kept
		}
	}
	return out
}
