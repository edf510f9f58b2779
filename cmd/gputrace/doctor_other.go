// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !amd64

package main

import (
	"fmt"
	"runtime"
)

func examine(doctorOptions) error {
	return fmt.Errorf("there is nothing to examine yet on %s/%s: gputrace traces on Linux on x86-64 for now", runtime.GOOS, runtime.GOARCH)
}
