// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A number is read to its end and no further; what is none is an error, after which nothing more is read.
func TestCursorNumber(t *testing.T) {
	for _, want := range []uint64{0, 1, 0x7f, 0x80, 1 << 32, math.MaxUint64} {
		c := &cursor{data: append(binary.AppendUvarint(nil, want), 7)}
		require.Equal(t, want, c.number())
		require.NoError(t, c.err)
		require.Equal(t, []byte{7}, c.data)
	}
	for name, data := range map[string][]byte{"nothing": {}, "no end": {0x80}, "too long": bytes.Repeat([]byte{0xff}, 11)} {
		c := &cursor{data: data}
		require.Zero(t, c.number(), name)
		require.ErrorContains(t, c.err, "a number ends early", name)
		require.Empty(t, c.data, name)
	}
}

// What is longer than what is left is an error.
func TestCursorBytes(t *testing.T) {
	c := &cursor{data: []byte("abcdefgh")}
	require.Equal(t, "abc", string(c.bytes(3)))
	require.Equal(t, "defgh", string(c.bytes(5)))
	require.Empty(t, c.bytes(0))
	require.NoError(t, c.err)
	require.Empty(t, c.bytes(1))
	require.Error(t, c.err)
	c = &cursor{data: make([]byte, 7)}
	require.Zero(t, c.fixed())
	require.Error(t, c.err)
	c = &cursor{data: binary.LittleEndian.AppendUint64(nil, 1<<63)}
	require.Equal(t, uint64(1<<63), c.fixed())
	require.NoError(t, c.err)
}

// A count is one that can follow, an index one that is there.
func TestCursorLimits(t *testing.T) {
	for n, ok := range map[byte]bool{0: true, 3: true, 4: false} {
		c := &cursor{data: append([]byte{n}, make([]byte, 7)...)} // room for three of two bytes
		c.count(2)
		require.Equal(t, ok, c.err == nil, "count %d", n)
		c = &cursor{data: []byte{n}}
		c.index(4)
		require.Equal(t, n < 4, c.err == nil, "index %d", n)
	}
}
