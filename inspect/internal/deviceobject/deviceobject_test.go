// SPDX-License-Identifier: Apache-2.0

package deviceobject

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// image is memory from an address on.
type image struct {
	at    uint64
	bytes []byte
}

func (m *image) ReadAt(b []byte, addr uint64) (int, error) {
	if addr < m.at || addr >= m.at+uint64(len(m.bytes)) {
		return 0, io.EOF
	}
	n := copy(b, m.bytes[addr-m.at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// properties are those of a device, as CUDA lays them out or, old, HIP before version 6.
func properties(name string, total uint64, old bool) []byte {
	b := make([]byte, leastProperty)
	copy(b, name)
	l := propertyLayouts[0]
	if old {
		l = propertyLayouts[1]
	}
	binary.LittleEndian.PutUint64(b[l.total:], total)
	binary.LittleEndian.PutUint64(b[l.sharedMemory:], 48<<10)
	binary.LittleEndian.PutUint32(b[l.warp:], 32)
	binary.LittleEndian.PutUint32(b[l.threads:], 1024)
	return b
}

// TestSizes: the properties are found anywhere in a device's object; what only looks like a name is none.
func TestSizes(t *testing.T) {
	const at, gib = 0x7000, 1 << 30
	for name, tt := range map[string]struct {
		object []byte
		want   uint64
	}{
		"CUDA":               {properties("NVIDIA H200", 141*gib, false), 141 * gib},
		"HIP 5":              {properties("AMD Instinct MI250X", 64*gib, true), 64 * gib},
		"no name":            {properties("", 141*gib, false), 0},
		"not a name":         {properties("\x01\x02\x03\x04", 141*gib, false), 0},
		"more than there is": {properties("NVIDIA H200", 1<<43, false), 0},
		"nothing":            {make([]byte, leastProperty), 0},
		"cut off":            {properties("NVIDIA H200", 141*gib, false)[:300], 0},
	} {
		for _, before := range []int{0, 8, 0x818} {
			m := &image{at, append(make([]byte, before), tt.object...)}
			require.Equal(t, []uint64{tt.want}, Sizes(m, []Object{{Addr: at, Limit: 0x1000}}), "%s behind %d", name, before)
		}
	}
}

// TestSizesAt: a vector of the properties of all devices, of which some are not filled yet.
func TestSizesAt(t *testing.T) {
	const at, gib = 0x7000, 1 << 30
	b := append(properties("NVIDIA L4", 24*gib, false), make([]byte, leastProperty)...)
	m, end := &image{at, b}, uint64(at+2*leastProperty)
	require.Equal(t, []uint64{24 * gib, 0}, sizesAt(m, at, end, end, 2))
	require.Nil(t, sizesAt(m, at, end, end-8, 2), "no capacity")
	require.Nil(t, sizesAt(m, at+leastProperty, end, end, 1), "not filled")
	b[leastProperty] = 1
	require.Nil(t, sizesAt(m, at, end, end, 2), "the second is another thing")
}

// TestLimits: the word behind the total of the segments, or before the byte of an optional; it is no less than what is reserved.
func TestLimits(t *testing.T) {
	require.Equal(t, []uint64{70, 90}, Limits([]uint64{50, 70, 3, 90, 1, 20, 1, 90, 1}, 50))
	require.Empty(t, Limits([]uint64{1 << 43, 1}, 0))
}
