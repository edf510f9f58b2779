// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"os"

	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/doctor"
)

// examine prints the doctor's findings. Its error has no text, because the verdict is the last line.
func examine(o doctorOptions) error {
	done := progress.Doing(os.Stderr, "checking the kernel and gputrace's rights, Ctrl-C ends it")
	ctx, stop := untilInterrupted()
	defer stop()
	reports := make(chan *doctor.Report, 1)
	go func() {
		reports <- doctor.Run(doctor.Options{PID: o.pid, For: o.duration, CacheDir: o.cacheDir, Memory: o.memory})
	}()
	var r *doctor.Report
	select {
	case r = <-reports:
	case <-ctx.Done():
		doctor.Abandon()
	}
	done()
	if r == nil {
		return errInterrupted
	}
	var err error
	if o.json {
		err = doctor.WriteJSON(os.Stdout, r, version)
	} else {
		err = doctor.WriteText(os.Stdout, r, doctor.Text{Version: version, All: o.verbose, Width: console.Width("")})
	}
	if err != nil {
		return err
	}
	if !r.Works {
		return coded(exitError, errors.New(""))
	}
	return nil
}
