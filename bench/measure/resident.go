// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
)

// forgetPeak prepares for largest: that of a child begins with what its parent once took. It gives back what is free, and has the
// kernel forget how large this process was (5 in clear_refs, proc(5)).
func forgetPeak() error {
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("forget the largest resident size: %w", err)
	}
	return nil
}

// largest is the largest resident size of a program that has ended, MiB.
func largest(p *os.ProcessState) float64 {
	return float64(p.SysUsage().(*syscall.Rusage).Maxrss) / 1024
}
