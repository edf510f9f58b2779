//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

func examine(doctorOptions) error {
	return fmt.Errorf("there is nothing to examine yet on %s: gputrace runs on Linux for now", runtime.GOOS)
}
