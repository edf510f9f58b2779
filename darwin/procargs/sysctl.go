// SPDX-License-Identifier: Apache-2.0

//go:build darwin

package procargs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Of reads what a process was started with. The environment is shown to its own user and root.
func Of(pid int) (*Args, error) {
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return nil, fmt.Errorf("arguments of process %d: %w", pid, err)
	}
	return Parse(b)
}
