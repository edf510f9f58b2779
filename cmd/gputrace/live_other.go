// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/gputrace/gputrace/darwin"
)

func dump(dumpOptions) error       { return notHere("reading another process") }
func showHolders(whoOptions) error { return notHere("reading another process") }

// examine inspects a program on macOS. Its error has no text, because the verdict is the last line.
func examine(o doctorOptions) error {
	if runtime.GOOS != "darwin" {
		return notHere("examining a machine")
	}
	e := darwin.Examine(cmp.Or(o.program, "python3"))
	if err := e.Write(os.Stdout); err != nil {
		return err
	}
	if !e.Works() {
		return coded(exitError, errors.New(""))
	}
	return nil
}

// notHere returns the error for a feature that exists only on Linux on x86-64 and arm64.
func notHere(what string) error {
	return fmt.Errorf("%s is not yet possible on %s/%s: gputrace traces on Linux on x86-64 and arm64 for now", what, runtime.GOOS,
		runtime.GOARCH)
}
