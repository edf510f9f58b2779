// SPDX-License-Identifier: Apache-2.0

package process

import "encoding/binary"

// Memory reads a process's memory by address. *Process is one; tests use images.
type Memory interface {
	// ReadAt fills b from addr. It returns io.ErrUnexpectedEOF, and the bytes read, when only the front could be read.
	ReadAt(b []byte, addr uint64) (int, error)
}

// Uint64 reads one little-endian word.
func Uint64(m Memory, addr uint64) (uint64, error) {
	var b [8]byte
	if _, err := m.ReadAt(b[:], addr); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
