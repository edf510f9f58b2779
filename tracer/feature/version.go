// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package feature

import (
	"sync"

	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// ReadVersion makes package ebpf read the kernel's version from our own memory, which it does once. A program with capabilities
// from setcap cannot read that file unless it is dumpable (proc(5), PR_SET_DUMPABLE of prctl(2)), so ReadVersion makes it
// dumpable for this moment only: a core file must not contain memory that we have read from another user's process.
var ReadVersion = sync.OnceFunc(func() {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err == nil && dumpable != 1 && unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
	_, _ = features.LinuxVersionCode() // what needs it says so
})
