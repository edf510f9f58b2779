// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

// TestDirectMap reads memory of all kinds in place, by the map that was found, and by others.
func TestDirectMap(t *testing.T) {
	found, err := Find(btf.NewCache())
	require.NoError(t, err)
	t.Logf("known from %s", found.Source)
	right := bpf.ProveDirectMap{Base: found.Base, Mask: found.Mask, End: found.End, Levels: found.Levels}
	p, err := newProver(btf.NewCache())
	require.NoError(t, err)
	t.Cleanup(p.close)

	const huge = 2 << 20
	anonymous := mapped(t, -1, 4*huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, unix.Madvise(anonymous, unix.MADV_HUGEPAGE))
	_, _ = rand.Read(anonymous)
	for at := 0; at < len(anonymous); at += 40 * 8 {
		word, err := p.read(right, anonymous, at)
		require.NoError(t, err)
		require.Equal(t, binary.LittleEndian.Uint64(anonymous[at:]), word, "at %#x", at)
	}

	self, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer self.Close()
	file := mapped(t, int(self.Fd()), pageBytes, unix.PROT_READ, unix.MAP_PRIVATE)
	want := binary.LittleEndian.Uint64(file[16:])
	word, err := p.read(right, file, 16)
	require.NoError(t, err)
	assert.Equal(t, want, word)

	untouched := mapped(t, -1, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	word, err = p.read(right, untouched, 0)
	require.NoError(t, err)
	assert.Zero(t, word, "never touched")

	// As NUMA balancing does it to see who uses a page: the page is there.
	small := mapped(t, -1, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	_, _ = rand.Read(small)
	for name, hidden := range map[string][]byte{"a large page": anonymous[huge:], "a small page": small} {
		want := binary.LittleEndian.Uint64(hidden)
		require.NoError(t, unix.Mprotect(hidden, unix.PROT_NONE))
		word, err := p.read(right, hidden, 0)
		require.NoError(t, err)
		assert.Equal(t, want, word, "%s without access", name)
	}

	page := anonymous[:pageBytes]
	for name, wrong := range map[string]bpf.ProveDirectMap{
		"below":  {Base: right.Base - mapStep, Mask: right.Mask, End: right.End, Levels: right.Levels},
		"levels": {Base: right.Base, Mask: right.Mask, End: right.End, Levels: 9 - right.Levels},
		"mask":   {Base: right.Base, Mask: right.Mask &^ (1<<20 - 1), End: right.End, Levels: right.Levels},
		"end":    {Base: right.Base, Mask: right.Mask, End: pageBytes, Levels: right.Levels},
		"none":   {},
	} {
		proved, err := p.provesBy(wrong, page)
		require.NoError(t, err)
		assert.False(t, proved, name)
	}
	proved, err := p.provesBy(right, page)
	require.NoError(t, err)
	assert.True(t, proved)
}

func mapped(t *testing.T, fd, size, protection, flags int) []byte {
	t.Helper()
	b, err := unix.Mmap(fd, 0, size, protection, flags)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}
