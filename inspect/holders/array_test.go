// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
)

// TestArrays: blocks of CuPy's pool are named beside PyTorch's, a view names the whole block, and what no array uses is unknown.
func TestArrays(t *testing.T) {
	m, names := made.New()
	c := m.AddCuPy(0)
	m.AddGlobal("history", m.List(c.Array(c.Memory(512), 0, 1, 0), c.Array(c.Memory(1024), 0, 2, 0)))
	m.AddGlobal("corner", c.Array(c.Memory(2048), 512, 1, c.Array(c.Memories[2], 0, 4, 0)))
	c.Memory(4096)
	report, _ := readMade(t, m, 11, 0)
	got := map[string]uint64{}
	for i := range report.Blocks {
		b := &report.Blocks[i]
		if b.Allocator == allocator.Torch {
			require.Equal(t, names[(b.Addr-made.Device)/made.Block], b.Name())
			continue
		}
		require.Equal(t, 1, b.Device)
		got[b.Name()] = b.Size
	}
	require.Equal(t, map[string]uint64{"history[0]": 512, "history[1]": 1024, "corner": 2048, "<unknown: no array uses it>": 4096}, got)
	corner := report.Blocks[len(report.Blocks)-2]
	require.Len(t, corner.Tensors, 2)
	require.False(t, corner.Tensors[0].Base)
	require.True(t, corner.Tensors[1].Base)
	require.Equal(t, []int64{1, 128}, corner.Tensors[0].Shape)
	require.Equal(t, uint64(7680), report.Devices[2].Active)
}
