// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package main

import (
	"errors"
	"os"

	"github.com/gputrace/gputrace/doctor"
)

// examine writes what the doctor finds; the error has no text: the verdict is the last line.
func examine(o doctorOptions) error {
	r := doctor.Run(doctor.Options{PID: o.pid, For: o.duration, CacheDir: o.cacheDir, Memory: o.memory})
	write := doctor.WriteText
	if o.json {
		write = doctor.WriteJSON
	}
	if err := write(os.Stdout, r, version); err != nil {
		return err
	}
	if !r.Works {
		return coded(exitError, errors.New(""))
	}
	return nil
}
