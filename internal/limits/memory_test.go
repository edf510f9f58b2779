// SPDX-License-Identifier: Apache-2.0

//go:build linux

package limits

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFit: the largest way that fits is taken, a ring whose size the user has fixed stays, and what is refused is what would be killed.
func TestFit(t *testing.T) {
	kernel := func(ring int) (uint64, error) { return uint64(ring) + 14<<20, nil }
	for _, tt := range []struct {
		left    uint64 // MiB
		fixed   bool
		ring    int // MiB; 0: refused
		holders bool
	}{
		{1024, false, 32, true}, {272, false, 32, true}, {271, false, 4, true}, {224, false, 4, true}, {223, false, 4, false},
		{164, false, 4, false}, {163, false, 0, false}, {0, false, 0, false},
		{271, true, 32, true}, {252, true, 32, true}, {251, true, 32, false}, {192, true, 32, false}, {191, true, 0, false},
	} {
		b, err := Room{tt.left << 20, "gputrace's control group"}.fit(32<<20, tt.fixed, kernel)
		if tt.ring == 0 {
			require.ErrorContains(t, err, "gputrace's control group has", tt)
			continue
		}
		require.NoError(t, err, tt)
		require.Equal(t, tt.ring<<20, b.Ring, tt)
		require.Equal(t, tt.holders, b.Holders, tt)
		require.LessOrEqual(t, b.Need, b.Left)
	}
	_, err := Room{163 << 20, "gputrace's control group"}.fit(32<<20, false, kernel)
	require.ErrorContains(t, err, "gputrace's control group has 163 MiB of memory left, and a trace without holders needs 164 MiB")
}

// TestHoldersMemory: a reading of holders holds fewer pages where there is little memory, and is not begun where it would be killed.
func TestHoldersMemory(t *testing.T) {
	for left, want := range map[uint64]int64{1000: 0, 88: 0, 87: memoryFew / 10, 68: memoryFew / 10, 67: -1, 0: -1} {
		held, err := Room{left << 20, "the machine"}.holders()
		if want < 0 {
			require.ErrorContains(t, err, "the machine has", left)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, want, held)
	}
}

// TestAvailable reads what the kernel counts.
func TestAvailable(t *testing.T) {
	n, ok := available("MemTotal:       24668164 kB\nMemFree:        19668164 kB\nMemAvailable:   23000000 kB\n")
	require.True(t, ok)
	require.EqualValues(t, 23000000<<10, n)
	for _, text := range []string{"", "MemFree: 1 kB\n", "MemAvailable:", "MemAvailable: x kB"} {
		_, ok := available(text)
		require.False(t, ok, text)
	}
}
