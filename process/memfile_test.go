// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReadMemory compares /proc/PID/mem with process_vm_readv(2): in the middle of a mapping, across its end, and where nothing is mapped.
func TestReadMemory(t *testing.T) {
	page := os.Getpagesize()
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(2*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	for i := range page {
		*(*byte)(unsafe.Add(start, i)) = byte(i * 7)
	}
	require.NoError(t, unix.MunmapPtr(unsafe.Add(start, page), uintptr(page)))
	addr := uint64(uintptr(start))
	for _, at := range []uint64{addr, addr + 5, addr + uint64(page) - 8, addr + uint64(page), 0} {
		want, got := make([]byte, 64), make([]byte, 64)
		n, err := readMemory(os.Getpid(), want, at)
		m, fileErr := ReadMemory(os.Getpid(), [][]byte{got}, []uint64{at}, unix.EPERM)
		require.Equal(t, max(n, 0), max(m, 0), "%#x", at)
		require.Equal(t, err, fileErr, "%#x", at)
		require.Equal(t, want, got)
	}
	_, err = ReadMemory(1<<30, [][]byte{make([]byte, 1)}, []uint64{addr}, unix.EPERM)
	require.Equal(t, unix.EPERM, err)
}
