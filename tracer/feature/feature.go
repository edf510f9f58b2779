// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

// Package feature knows what tracing uses of the kernel, and asks whether this kernel has it. It explains; what decides is whether the
// programs load.
package feature

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/tracer/directmap"
)

// ErrMissing: the kernel was asked, and does not have it.
var ErrMissing = errors.New("this kernel does not have it")

// Refusal says in one sentence why a kernel did not take the programs, of an error that is tracer.ErrNotLoaded: what it lacks, where it
// lacks something, and what it said.
func Refusal(err error) string {
	release := "this kernel"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		release = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	var missing []string
	for i := range All {
		if f := &All[i]; f.Without == "" && errors.Is(f.Probe(), ErrMissing) {
			missing = append(missing, fmt.Sprintf("%s (since %s)", f.Name, f.Version))
		}
	}
	cause, _, _ := strings.Cut(err.Error(), "\n")
	if len(missing) > 0 {
		return fmt.Sprintf("%s cannot be traced on, it lacks %s: %s", release, strings.Join(missing, ", "), cause)
	}
	return fmt.Sprintf("%s has all that the programs use, and refuses them: %s", release, cause)
}

// Feature is something that tracing uses of the kernel.
type Feature struct {
	Name    string
	Version string // of Linux that has it first, for people
	Without string // what is done without it; empty: it is needed
	probe   func() error
}

// Probe asks the kernel. nil: it has the feature; ErrMissing: it does not; any other error: that is not known, such as for
// want of the right to ask. Answers are kept for as long as gputrace runs.
func (f *Feature) Probe() error {
	ReadVersion()
	err := f.probe()
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return err
}

// KernelTypes is the name of the feature that is a file: a container can lack it on a kernel that has it.
const KernelTypes = "BTF of the kernel"

// UprobeMulti is the name of the feature without which tracing takes CAP_SYS_ADMIN.
const UprobeMulti = "uprobe_multi links"

// All are the features that the compiled programs use. Versions are those of bpf-helpers(7) and of the commits that bring the map
// and link types.
var All = []Feature{
	{Name: KernelTypes, Version: "5.4", probe: kernelTypes},
	{Name: "ring buffer", Version: "5.8", probe: mapType(ebpf.RingBuf)},
	{Name: "bpf_probe_read_user", Version: "5.5", probe: helper(asm.FnProbeReadUser)},
	{Name: "bpf_probe_read_kernel", Version: "5.5", probe: helper(asm.FnProbeReadKernel)},
	{Name: "tracing programs", Version: "5.5", probe: tracingProgram},
	{Name: "task storage", Version: "5.11", probe: mapType(ebpf.TaskStorage)},
	{Name: "bpf_task_storage_get", Version: "5.11", probe: helper(asm.FnTaskStorageGet)},
	{Name: "bpf_task_storage_delete", Version: "5.11", probe: helper(asm.FnTaskStorageDelete)},
	{Name: "bpf_get_current_task_btf", Version: "5.11", probe: helper(asm.FnGetCurrentTaskBtf)},
	{Name: "bpf_get_attach_cookie", Version: "5.15", probe: helper(asm.FnGetAttachCookie)},
	{Name: "bpf_find_vma", Version: "5.17", Without: "stacks that are taken while libraries change end early", probe: helper(asm.FnFindVma)},
	{Name: "reading memory in place", Version: "6.2", Without: "stacks cost twice as much", probe: readsInPlace},
	{Name: UprobeMulti, Version: "6.6", Without: "each function is attached by a perf event", probe: features.HaveBPFLinkUprobeMulti},
}

func mapType(t ebpf.MapType) func() error { return func() error { return features.HaveMapType(t) } }

// tracingProgram loads one that does nothing, for where ours are.
func tracingProgram() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "sched_process_exit", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return err
	}
	return p.Close()
}

// helper asks for a function that programs on uprobes call.
func helper(f asm.BuiltinFunc) func() error {
	return func() error { return features.HaveProgramHelper(ebpf.Kprobe, f) }
}

// kernelTypes reads what a kernel built with CONFIG_DEBUG_INFO_BTF shows in /sys/kernel/btf/vmlinux.
func kernelTypes() error {
	_, err := btf.LoadKernelSpec()
	return err
}

// readsInPlace also says no where the kernel has the means but its memory cannot be found.
func readsInPlace() error {
	_, err := directmap.Find(btf.NewCache())
	var refused *ebpf.VerifierError
	if errors.Is(err, directmap.ErrNotFound) || errors.As(err, &refused) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return err
}

// HasUprobeMulti asks the kernel once for links to many uprobes (6.6).
func HasUprobeMulti() bool {
	ReadVersion()
	return features.HaveBPFLinkUprobeMulti() == nil
}

// SystemCall is a call of the kernel that tracing makes, and that a filter can forbid.
type SystemCall struct {
	Name   string
	Err    error // it is refused: EPERM, EACCES or ENOSYS
	Unused bool  // it is not made on this kernel

	// Without is what a trace does not have when the call is refused; empty: there is no trace.
	Without string
}

// SystemCalls makes each of them in a way that does nothing: with arguments that the kernel looks at before it asks for rights,
// so that it is a filter that refuses. bpf(2) of kernels that ask first is also refused without CAP_BPF.
func SystemCalls() []SystemCall {
	raw := func(number uintptr, args ...uintptr) error {
		args = append(args, 0, 0, 0, 0, 0, 0)
		_, _, errno := unix.Syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		switch errno {
		case unix.EPERM, unix.EACCES, unix.ENOSYS:
			return errno
		}
		return nil
	}
	bad := ^uintptr(0)
	return []SystemCall{
		{Name: "bpf", Err: raw(unix.SYS_BPF, 1<<30)},
		{Name: "perf_event_open", Err: raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, bad, bad), Unused: HasUprobeMulti()},
		{
			Name: "process_vm_readv", Err: raw(unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid())),
			Without: "Python's frames, holders and the allocator state are not read",
		},
		{Name: "pidfd_open", Err: raw(unix.SYS_PIDFD_OPEN, bad)},
		{Name: "openat2", Err: raw(unix.SYS_OPENAT2, bad), Without: "files that the program names are not read"},
	}
}

// LockedMemory raises the limit of locked memory, which kernels before 5.11 charge BPF memory to. Later ones do not need it.
func LockedMemory() error { return rlimit.RemoveMemlock() }
