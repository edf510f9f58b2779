// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package feature lists the kernel features that tracing uses, and tests whether this kernel has them. The result only
// explains: whether tracing works is decided by loading the programs.
package feature

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/tracer/directmap"
)

// ErrMissing means that the kernel does not have the feature, according to a test.
var ErrMissing = errors.New("this kernel does not have it")

// Refusal explains in one sentence why a kernel rejected the programs, for an error that is tracer.ErrNotLoaded: the
// missing features, if any, and the kernel's message.
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

// Feature is a kernel feature that tracing uses.
type Feature struct {
	Name    string
	Version string // first version of Linux that has it, for people
	Without string // what tracing does without it; empty: it is required
	probe   func() error
}

// Probe tests whether the kernel has the feature. It returns nil if so, ErrMissing if not, and any other error if that
// is not known, for example because the right to test is missing. Results are kept as long as gputrace runs.
func (f *Feature) Probe() error {
	ReadVersion()
	err := f.probe()
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return err
}

// KernelTypes is the name of the feature that is a file: a container can lack the file although the kernel has the feature.
const KernelTypes = "BTF of the kernel"

// UprobeMulti is the name of the feature without which tracing needs CAP_SYS_ADMIN.
const UprobeMulti = "uprobe_multi links"

// All lists the features that the compiled programs use. Versions are from bpf-helpers(7) and from the commits that
// added the map and link types.
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

// tracingProgram loads an empty program of the type that tracing uses.
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

// helper returns a test for a function that programs on uprobes call.
func helper(f asm.BuiltinFunc) func() error {
	return func() error { return features.HaveProgramHelper(ebpf.Kprobe, f) }
}

// kernelTypes reads /sys/kernel/btf/vmlinux, which a kernel built with CONFIG_DEBUG_INFO_BTF provides.
func kernelTypes() error {
	_, err := btf.LoadKernelSpec()
	return err
}

// ErrProcessor means that a feature is used on other processors only.
var ErrProcessor = errors.New("not used on this processor")

// readsInPlace also fails if the kernel has the features but its memory cannot be found.
func readsInPlace() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: %w", ErrMissing, ErrProcessor)
	}
	_, err := directmap.Find(btf.NewCache())
	var refused *ebpf.VerifierError
	if errors.Is(err, directmap.ErrNotFound) || errors.As(err, &refused) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return err
}

// HasUprobeMulti tests once whether the kernel has links to many uprobes (6.6).
func HasUprobeMulti() bool {
	ReadVersion()
	return features.HaveBPFLinkUprobeMulti() == nil
}

// SystemCall is a system call that tracing makes, and that a filter can forbid.
type SystemCall struct {
	Name   string
	Err    error // the call is refused: EPERM, EACCES or ENOSYS
	Unused bool  // the call is not made on this kernel

	// Without is what a trace lacks if the call is refused; empty: there is no trace.
	Without string
}

// SystemCalls makes each system call without an effect: with arguments that the kernel rejects before it checks rights,
// so that only a filter can refuse it. On kernels that check rights first, bpf(2) is also refused without CAP_BPF.
// process_vm_readv(2) is not among them, because /proc/PID/mem does the same.
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
		{Name: "pidfd_open", Err: raw(unix.SYS_PIDFD_OPEN, bad)},
		{Name: "openat2", Err: raw(unix.SYS_OPENAT2, bad), Without: "files that the program names are not read"},
	}
}

// LockedMemory raises the limit of locked memory, to which kernels before 5.11 charge BPF memory. Later ones do not need it.
func LockedMemory() error { return rlimit.RemoveMemlock() }
