// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// plainMemory is pages that exist, each filled with a number.
type plainMemory map[uint64]byte

func (m plainMemory) ReadAt(b []byte, addr uint64) (int, error) {
	for i := range b {
		v, ok := m[(addr+uint64(i))&^(pageSize-1)]
		if !ok {
			return i, io.ErrUnexpectedEOF
		}
		b[i] = v
	}
	return len(b), nil
}

const firstPage = 0x10000

func newPlain(n int) (plainMemory, *pages) {
	m := plainMemory{}
	for i := range n {
		m[firstPage+uint64(i)*pageSize] = 1
	}
	return m, newPages(m)
}

func (m plainMemory) touch(page int) { m[firstPage+uint64(page)*pageSize]++ }

func readAll(t *testing.T, c *pages, n int) {
	t.Helper()
	_, err := c.ReadAt(make([]byte, n*pageSize), firstPage)
	require.NoError(t, err)
}

func TestPagesHotAndCold(t *testing.T) {
	const n = 2 * maxAllHot
	m, c := newPlain(n)
	readAll(t, c, n)
	require.Equal(t, n, c.misses)
	compare := func() int {
		t.Helper()
		require.NoError(t, c.copyHot())
		changed, err := c.compareCold()
		require.NoError(t, err)
		require.Zero(t, c.misses)
		return changed
	}
	require.Zero(t, compare())
	m.touch(n - 1)
	require.Equal(t, 1, compare(), "a page that was thought to be cold")
	for range 3 * maxAge {
		m.touch(n - 1)
		require.Zero(t, compare(), "it is known by now to change")
	}
	for range maxAge + 1 {
		require.Zero(t, compare())
	}
	c.sort()
	require.Empty(t, c.hot, "none has changed for long")
	m.touch(n - 1)
	require.Equal(t, 1, compare())
	var got [1]byte
	_, err := c.ReadAt(got[:], firstPage+(n-1)*pageSize)
	require.NoError(t, err)
	assert.Equal(t, m[firstPage+(n-1)*pageSize], got[0])
}

// TestPagesFew: a few pages are copied at once, changed or not.
func TestPagesFew(t *testing.T) {
	m, c := newPlain(maxAllHot)
	readAll(t, c, maxAllHot)
	for range 2 * maxAge {
		m.touch(7)
		require.NoError(t, c.copyHot())
		changed, err := c.compareCold()
		require.NoError(t, err)
		require.Zero(t, changed)
		require.Len(t, c.hot, maxAllHot)
	}
}

func TestPagesVanish(t *testing.T) {
	m, c := newPlain(3)
	readAll(t, c, 3)
	delete(m, firstPage+pageSize)
	require.Error(t, c.copyHot())
	assert.Empty(t, c.index)
	_, err := c.ReadAt(make([]byte, 3*pageSize), firstPage)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Len(t, c.index, 1, "the first page")
}
