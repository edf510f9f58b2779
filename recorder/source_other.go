// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

package recorder

import (
	"errors"
	"fmt"
	"runtime"
)

// ErrAbandoned is of a starter whose gputrace ended, and has said why.
var ErrAbandoned = errors.New("gputrace has ended")

// openSource says that nothing can be traced here.
func openSource(*Options) (Source, error) {
	return nil, fmt.Errorf("attaching is not yet possible on %s/%s: gputrace traces on Linux on x86-64 for now", runtime.GOOS, runtime.GOARCH)
}

// KernelRelease is the running kernel's; it is asked for only where something is traced.
func KernelRelease() string { return "unknown" }

// Become is for a program that was started.
func Become([]string) error {
	_, err := openSource(nil)
	return err
}
