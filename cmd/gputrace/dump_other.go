// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

package main

import (
	"fmt"
	"runtime"
)

func dump(dumpOptions) error {
	return fmt.Errorf("reading another process is not yet possible on %s/%s: gputrace traces on Linux on x86-64 for now", runtime.GOOS, runtime.GOARCH)
}
