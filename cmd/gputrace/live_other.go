// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

package main

import (
	"fmt"
	"runtime"
)

func examine(doctorOptions) error  { return notHere("examining a machine") }
func dump(dumpOptions) error       { return notHere("reading another process") }
func showHolders(whoOptions) error { return notHere("reading another process") }

// notHere is the error of what only Linux on x86-64 can do.
func notHere(what string) error {
	return fmt.Errorf("%s is not yet possible on %s/%s: gputrace traces on Linux on x86-64 for now", what, runtime.GOOS, runtime.GOARCH)
}
