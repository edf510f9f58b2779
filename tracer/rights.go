// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// kept are the capabilities that a trace needs until its end: to create tables for libraries that are loaded later, and
// to read the target's memory and files.
const kept = 1<<unix.CAP_BPF | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_CHECKPOINT_RESTORE | 1<<unix.CAP_DAC_READ_SEARCH

// DropRights drops, in all threads of the program, the capabilities that tracing no longer needs, except those in also
// (bits of linux/capability.h), and prevents gaining others by running a program. A later trace needs CAP_PERFMON,
// which must then be in also. DropRights waits for all threads, including one that hangs in a driver.
func (tr *Tracer) DropRights(also uint64) error {
	keep := kept | also
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read our own capabilities: %w", err)
	}
	if !tr.kernel.Multi {
		keep |= 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_ADMIN // probes in libraries that are loaded later are perf events too
	}
	if data[unix.CAP_BPF/32].Effective&(1<<(unix.CAP_BPF%32)) == 0 {
		keep |= 1 << unix.CAP_SYS_ADMIN // in place of CAP_BPF
	}
	if data[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		keep |= tr.rightsOfTargets() // without it, a process may be read only by one that has all its capabilities (ptrace(2))
	}
	for i := range data {
		part := uint32(keep >> (32 * i))
		data[i].Effective &= part
		data[i].Permitted &= part
		data[i].Inheritable = 0
	}
	if _, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("give up capabilities: %w", errno)
	}
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	return nil
}

// rightsOfTargets returns the capabilities that the traced processes may have, as bits of linux/capability.h. It returns
// all of them if there is no process yet, or if one cannot be asked.
func (tr *Tracer) rightsOfTargets() uint64 {
	const all = ^uint64(0)
	if len(tr.targets) == 0 {
		return all
	}
	rights := uint64(0)
	for pid := range tr.targets {
		header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(pid)}, [2]unix.CapUserData{}
		if unix.Capget(&header, &data[0]) != nil {
			return all
		}
		rights |= uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
	}
	return rights
}
