// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

// Package local is the recorder's source of events on this machine: on macOS, a started program; on other systems there
// is none yet.
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

// ErrAbandoned means that gputrace ended before releasing its starter. gputrace has reported the reason.
var ErrAbandoned = errors.New("gputrace has ended")

// Open returns the source of the program that options select, on macOS; elsewhere it returns an error. Nothing runs
// before its Start.
func Open(o *recorder.Options) (recorder.Source, error) {
	if runtime.GOOS == "darwin" && o != nil {
		return darwin.Open(o, nil), nil
	}
	return nil, fmt.Errorf("attaching is not yet possible on %s/%s: gputrace traces on Linux on x86-64 and arm64", runtime.GOOS,
		runtime.GOARCH)
}

// KeepSmall waits until ctx is done: only where the kernel traces does gputrace's memory matter to the job.
func KeepSmall(ctx context.Context) { <-ctx.Done() }

// Survey returns an error: this platform has no survey of processes.
func Survey(context.Context) (*machine.Report, error) {
	_, err := Open(nil)
	return nil, err
}

// Become is called in a started program.
func Become([]string) error {
	_, err := Open(nil)
	return err
}
