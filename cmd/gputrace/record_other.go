//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

func record(recordOptions) error {
	return fmt.Errorf("attaching is not yet possible on %s: gputrace runs on Linux for now", runtime.GOOS)
}

func startHere([]string) error { return record(recordOptions{}) }
