// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"fmt"
	"io"
	"unsafe"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/process"
)

// codeImage is a Python code object as the kernel copied it when a stack first contained it. Copied parts are read from
// the copy; the rest, such as a line table longer than the copy, from the process's memory.
type codeImage struct {
	record *bpf.TraceRecordCode
	live   process.Memory
}

const codeBytes = int(unsafe.Sizeof(bpf.TraceRecordCode{}))

// decodeCode reads a record_code. It copies the record.
func decodeCode(raw []byte) (*bpf.TraceRecordCode, error) {
	if len(raw) < codeBytes {
		return nil, fmt.Errorf("code record of %d bytes, want %d", len(raw), codeBytes)
	}
	r := new(bpf.TraceRecordCode)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(r)), codeBytes), raw)
	return r, nil
}

// ReadAt implements process.Memory. If the copy has only the front of a chunk, the rest is read from the process.
func (c *codeImage) ReadAt(b []byte, addr uint64) (int, error) {
	n := 0
	for i, data := range c.chunks() {
		data = data[:min(len(data), int(c.record.Len[i]))]
		if start := c.record.Addr[i]; addr >= start && addr-start < uint64(len(data)) {
			n = copy(b, data[addr-start:])
			break
		}
	}
	if n == len(b) {
		return n, nil
	}
	m, err := c.live.ReadAt(b[n:], addr+uint64(n))
	if n > 0 && err != nil {
		err = io.ErrUnexpectedEOF
	}
	return n + m, err
}

// chunks returns the copied pieces, in the order of enum code_chunk.
func (c *codeImage) chunks() [bpf.TraceCodeChunkCODE_CHUNKS][]byte {
	r := c.record
	return [...][]byte{r.Object[:], r.Qualname[:], r.Name[:], r.Filename[:], r.Linetable[:]}
}
