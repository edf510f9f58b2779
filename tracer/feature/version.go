// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package feature

import (
	"sync"

	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// ReadVersion makes package ebpf read the kernel's version, which it does once, from our own memory. The kernel keeps that file
// from a program that setcap has given capabilities, as long as it is not dumpable (proc(5), PR_SET_DUMPABLE of prctl(2)). It is
// for this moment only: a core file must not show what we have read of another user's process.
var ReadVersion = sync.OnceFunc(func() {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err == nil && dumpable != 1 && unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
	_, _ = features.LinuxVersionCode() // what needs it says so
})
