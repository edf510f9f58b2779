// SPDX-License-Identifier: Apache-2.0

//go:build linux

package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable: a table is a map of its keys, however many there are, and 0 is none of them.
func TestTable(t *testing.T) {
	got, want := NewTable(), map[uint64]uint32{}
	for i := range uint32(5 * minTable) {
		key := uint64(i) * 16 % (3 * minTable * 16) // many come twice
		got.Set(key, i+1)
		if key != 0 {
			want[key] = i + 1
		}
	}
	for key := range uint64(4 * minTable * 16) {
		n, ok := got.Get(key)
		value, there := want[key]
		require.Equal(t, there, ok, key)
		require.Equal(t, value, n, key)
	}
	require.Equal(t, len(want), got.Len())
}
