package process

import (
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Memory reads a process's memory by address. *Process is one; tests use images.
type Memory interface {
	// ReadAt fills b from addr. It returns io.ErrUnexpectedEOF, and the bytes read, when only the front could be read.
	ReadAt(b []byte, addr uint64) (int, error)
}

// ReadAt reads memory with process_vm_readv(2): it needs what ptrace attach would need, but stops nothing.
func (p *Process) ReadAt(b []byte, addr uint64) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMReadv(p.PID, local, remote, 0)
	if err != nil {
		return 0, p.wrap(fmt.Sprintf("read %d bytes at %#x of", len(b), addr), err)
	}
	if n < len(b) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// Uint64 reads one little-endian word.
func Uint64(m Memory, addr uint64) (uint64, error) {
	var b [8]byte
	if _, err := m.ReadAt(b[:], addr); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
