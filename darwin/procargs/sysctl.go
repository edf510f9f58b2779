// SPDX-License-Identifier: Apache-2.0

//go:build darwin

package procargs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Of reads the arguments and environment of a process. The environment is visible to its own user and root.
func Of(pid int) (*Args, error) {
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return nil, fmt.Errorf("arguments of process %d: %w", pid, err)
	}
	return Parse(b)
}

// Owner is the user that a process runs as.
func Owner(pid int) (uid int, err error) {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	return int(p.Eproc.Ucred.Uid), nil
}
