// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

import (
	"errors"
	"time"
)

// ExitWatch exists on Linux only.
type ExitWatch struct{}

// WatchExit returns errors.ErrUnsupported: it works on Linux only.
func (p *Process) WatchExit() (*ExitWatch, error) {
	return nil, p.wrap("watch the end", errors.ErrUnsupported)
}

// Close does nothing.
func (w *ExitWatch) Close() {}

// Status reports that the status is not known.
func (w *ExitWatch) Status(time.Duration) (code int, ok bool) { return 0, false }
