// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

// Package local is the recorder's source of events on this machine: macOS's, elsewhere there is none yet.
package local

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/gputrace/gputrace/analysis/machine"
	"github.com/gputrace/gputrace/darwin"
	"github.com/gputrace/gputrace/recorder"
)

// ErrAbandoned is of a starter whose gputrace ended, and has said why.
var ErrAbandoned = errors.New("gputrace has ended")

// Open makes the source of the program that options name, on macOS; elsewhere nothing can be traced. Nothing runs before its Start.
func Open(o *recorder.Options) (recorder.Source, error) {
	if runtime.GOOS == "darwin" && o != nil {
		return darwin.Open(o, nil), nil
	}
	return nil, fmt.Errorf("attaching is not yet possible on %s/%s: gputrace traces on Linux on x86-64 for now", runtime.GOOS, runtime.GOARCH)
}

// Survey says the same: no process is looked into.
func Survey(context.Context) (*machine.Report, error) {
	_, err := Open(nil)
	return nil, err
}

// Become is for a program that was started.
func Become([]string) error {
	_, err := Open(nil)
	return err
}
