//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

func who(whoOptions) error {
	return fmt.Errorf("reading another process is not yet possible on %s: gputrace runs on Linux for now", runtime.GOOS)
}
