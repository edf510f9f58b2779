// SPDX-License-Identifier: Apache-2.0

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

// Root is for Linux only so far.
type Root struct{}

// Root is for Linux only so far: it returns errors.ErrUnsupported.
func (p *Process) Root() (*Root, error) {
	return nil, p.wrap("open the root directory of", errors.ErrUnsupported)
}

// Close does nothing: there is no Root here.
func (r *Root) Close() error { return nil }

// Open is for Linux only so far: it returns errors.ErrUnsupported.
func (r *Root) Open(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// Pidfd is for Linux only: it returns errors.ErrUnsupported.
func (p *Process) Pidfd() (int, error) { return -1, p.wrap("pidfd_open", errors.ErrUnsupported) }

// FileID is zero: there is no Linux process here.
func (p *Process) FileID(*Mapping) FileID { return FileID{} }

// FileIDOf is zero: there is no Linux file here.
func FileIDOf(*os.File) FileID { return FileID{} }

func (r *Root) exists(string) bool { return false }

func (p *Process) find(*Mapping) (*os.File, error) { return nil, errors.ErrUnsupported }

func reopen(*os.File, string) (*os.File, error) { return nil, errors.ErrUnsupported }

// Groups is for Linux only: it returns errors.ErrUnsupported.
func (p *Process) Groups() ([]uint32, error) { return nil, errors.ErrUnsupported }
