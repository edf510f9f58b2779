// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

import (
	"errors"
	"os"
)

// ReadAt returns errors.ErrUnsupported: it works on Linux only.
func (p *Process) ReadAt([]byte, uint64) (int, error) {
	return 0, p.wrap("read memory of", errors.ErrUnsupported)
}

// Root exists on Linux only.
type Root struct{}

// Root returns errors.ErrUnsupported: it works on Linux only.
func (p *Process) Root() (*Root, error) {
	return nil, p.wrap("open the root directory of", errors.ErrUnsupported)
}

// Close does nothing: there is no Root here.
func (r *Root) Close() error { return nil }

// Open returns errors.ErrUnsupported: it works on Linux only.
func (r *Root) Open(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// Pidfd returns errors.ErrUnsupported: it works on Linux only.
func (p *Process) Pidfd() (int, error) { return -1, p.wrap("pidfd_open", errors.ErrUnsupported) }

// FileID returns the zero value: there is no Linux process here.
func (p *Process) FileID(*Mapping) FileID { return FileID{} }

// FileIDOf returns the zero value: there is no Linux file here.
func FileIDOf(*os.File) FileID { return FileID{} }

func (r *Root) exists(string) bool { return false }

func (p *Process) find(*Mapping) (*os.File, error) { return nil, errors.ErrUnsupported }

func reopen(*os.File, string) (*os.File, error) { return nil, errors.ErrUnsupported }

// Groups returns errors.ErrUnsupported: it works on Linux only.
func (p *Process) Groups() ([]uint32, error) { return nil, errors.ErrUnsupported }
