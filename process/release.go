// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import "golang.org/x/sys/unix"

// KernelRelease returns the release of the running kernel, from uname(1).
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
