//go:build !linux

package process

import (
	"errors"
	"os"
)

// ReadAt is for Linux only so far: it returns errors.ErrUnsupported.
func (p *Process) ReadAt([]byte, uint64) (int, error) {
	return 0, p.wrap("read memory of", errors.ErrUnsupported)
}

// OpenPath is for Linux only so far: it returns errors.ErrUnsupported.
func (p *Process) OpenPath(path string) (*os.File, error) {
	return nil, p.wrap("open "+path+" of", errors.ErrUnsupported)
}

// Pidfd is for Linux only: it returns errors.ErrUnsupported.
func (p *Process) Pidfd() (int, error) { return -1, p.wrap("pidfd_open", errors.ErrUnsupported) }

// FileID is zero: there is no Linux process here.
func (p *Process) FileID(*Mapping) FileID { return FileID{} }

// FileIDOf is not yet possible here.
func FileIDOf(string) FileID { return FileID{} }

func sameFile(os.FileInfo, *Mapping) bool { return false }
