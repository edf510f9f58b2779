//go:build linux

package who

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable compares with a map. Address 0, which damaged memory can name, is never there.
func TestTable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table, want := newTable(), map[uint64]uint32{}
	for i := range uint32(3 * minTable) {
		key := random.Uint64N(4*minTable) << 4
		table.set(key, i)
		if key != 0 {
			want[key] = i
		}
	}
	for key := range uint64(4 * minTable) {
		got, ok := table.get(key << 4)
		expected, there := want[key<<4]
		require.Equal(t, there, ok, key<<4)
		require.Equal(t, expected, got, key<<4)
	}
	require.False(t, table.has(0))
}
