//go:build !linux || !amd64

package main

import (
	"fmt"
	"runtime"
)

func record(recordOptions) error {
	return fmt.Errorf("attaching is not yet possible on %s/%s: gputrace traces on Linux on x86-64 for now", runtime.GOOS, runtime.GOARCH)
}

func startHere([]string) error { return record(recordOptions{}) }
