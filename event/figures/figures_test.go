// SPDX-License-Identifier: Apache-2.0

package figures

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestBytes: a size that is not known is null, and any other one a number.
func TestBytes(t *testing.T) {
	for b, want := range map[Bytes]string{0: "0", 1 << 60: "1152921504606846976", Unknown - 1: "18446744073709551614", Unknown: "null"} {
		text, err := json.Marshal(b)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		got := Bytes(7)
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, b, got)
	}
	require.EqualValues(t, event.Unknown, Unknown)
	var b Bytes
	require.Error(t, json.Unmarshal([]byte("-1"), &b))
}

// TestNamesInFile: the names in JSON are those of files that exist.
func TestNamesInFile(t *testing.T) {
	for want, v := range map[string]any{
		`{"probe":"p","hits":3,"emitted":1,"quiet":{"a":1},"dropped":{"b":1}}`: Hits{
			Probe: "p", Hits: 3, Emitted: 1, Quiet: map[string]uint64{"a": 1}, Dropped: map[string]uint64{"b": 1}, Received: 9,
		},
		`{"sent":6,"unwound":1,"guessed":2,"partial":3,"over_rate":4,"no_room":5}`: RawStacks{6, 1, 2, 3, 4, 5},
		`{"made":3,"differences":2,"failed":1}`:                                    Checks{3, 2, 1},
		`{"device":1,"reserved":6,"allocated":5,"requested":4,"pending":null,"holes":2,"free":1,"largest_free":2}`: TorchMemory{1, 6, 5, 4,
			Unknown, 2, 1, 2, 0},
		`{"device":-1,"name":"n","uuid":"u","used":null,"why":"w","total":2,"all":1}`: DriverUse{-1, "n", "u", Unknown, "w", 2, 1},
		`{"pid":7,"device":{"Type":2,"Index":1},"holder":"h","bytes":2,"blocks":1}`: HeldBefore{
			7, event.Device{Type: 2, Index: 1}, HeldPart{"h", 2, 1},
		},
	} {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

// TestLost adds up what was dropped, for any reason.
func TestLost(t *testing.T) {
	h := Hits{Hits: 9, Quiet: map[string]uint64{"a": 4}, Dropped: map[string]uint64{"b": 2, "c": 3, "d": 0}}
	require.EqualValues(t, 5, h.Lost())
}

// TestRawStacks: each status is counted once.
func TestRawStacks(t *testing.T) {
	var c RawStacks
	for _, s := range []event.StackStatus{event.StatusUnwound, event.StatusGuessed, event.StatusUnwound, event.StatusTooDeep} {
		c.Add(s)
	}
	require.Equal(t, RawStacks{Unwound: 2, Guessed: 1, Partial: 1}, c)
}
