// SPDX-License-Identifier: Apache-2.0

//go:build linux

package memory

import "golang.org/x/sys/unix"

// reserve maps memory of ours, which is taken when it is first written to.
func reserve(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err == nil {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // fewer page faults; nothing is lost without
	}
	return b, err
}

func populate(b []byte) error { return unix.Madvise(b, unix.MADV_POPULATE_WRITE) }
