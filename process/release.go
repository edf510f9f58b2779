// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import "golang.org/x/sys/unix"

// KernelRelease is the running kernel's, as uname(1) says it.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
