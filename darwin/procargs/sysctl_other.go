// SPDX-License-Identifier: Apache-2.0

//go:build !darwin

package procargs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Of is for macOS only.
func Of(int) (*Args, error) {
	return nil, errors.New("arguments of a process: read so on macOS only")
}

// Owner is the user that a process runs as.
func Owner(pid int) (uid int, err error) {
	st, err := os.Stat(fmt.Sprint("/proc/", pid))
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("process %d: its owner is not known", pid)
	}
	return int(sys.Uid), nil
}
