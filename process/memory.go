// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"encoding/binary"
)

// Memory reads a process's memory by address. *Process implements it; tests use images.
type Memory interface {
	// ReadAt fills b from addr. If only the front could be read, it returns the number of bytes read and io.ErrUnexpectedEOF.
	ReadAt(b []byte, addr uint64) (int, error)
}

// Until limits the reads of a memory: when ctx is done, each read fails with the context's cause.
func Until(ctx context.Context, m Memory) Memory { return bounded{m, ctx} }

type bounded struct {
	Memory
	ctx context.Context
}

// ReadAt implements Memory.
func (b bounded) ReadAt(p []byte, addr uint64) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	return b.Memory.ReadAt(p, addr)
}

// Uint64 reads one little-endian word.
func Uint64(m Memory, addr uint64) (uint64, error) {
	var b [8]byte
	if _, err := m.ReadAt(b[:], addr); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
