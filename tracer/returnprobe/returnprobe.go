// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package returnprobe decides whether return probes may be placed: on some kernels they end a process that has a seccomp filter.
package returnprobe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/gputrace/gputrace/tracer/feature"
	"github.com/gputrace/gputrace/tracer/internal/program"
)

// From Linux 6.11 on, a function with a return probe returns through a system call, uretprobe, for which the kernel consults
// the process's seccomp filter. Container runtimes and systemd refuse unknown system calls, and the process is killed by
// SIGSEGV (github.com/systemd/systemd/issues/34615, github.com/seccomp/libseccomp/issues/438). Linux 6.14 exempts the call, and
// so do later releases of 6.12 and 6.13; we know of no list of these, so all of 6.12 and 6.13 count as unsafe.
const (
	uretprobeFirst  = 6<<16 | 11<<8 // LINUX_VERSION_CODE
	uretprobeExempt = 6<<16 | 14<<8
)

// bySyscall: a function with a return probe returns through that system call. Only x86-64 has it; arm64 takes a breakpoint.
const bySyscall = runtime.GOARCH == "amd64"

// Trial is the result of running a process of ours with a filter and a return probe.
type Trial uint8

// The outcomes.
const (
	NotTried Trial = iota
	Survived
	Killed
)

func (t Trial) String() string { return [...]string{"not tried", "survived", "killed"}[t] }

// Guard decides whether return probes are safe.
type Guard struct {
	kernel   uint32 // LINUX_VERSION_CODE; 0: not known
	filtered bool   // a process that would have them has a filter, or may have one
	tried    Trial
}

// Safe reports whether return probes may be placed. It uses the result of the trial or, without one, the kernel version.
func (g Guard) Safe() bool {
	switch {
	case !g.filtered || g.tried == Survived || !bySyscall:
		return true
	case g.tried == Killed:
		return false
	default:
		return g.kernel != 0 && (g.kernel < uretprobeFirst || g.kernel >= uretprobeExempt)
	}
}

// tryReturns runs the trial on this kernel, once. It requires the rights to attach.
var tryReturns = sync.OnceValues(func() (Trial, error) {
	dir, err := program.Place(program.Image, program.Driver)
	if err != nil {
		return NotTried, err
	}
	defer os.RemoveAll(dir)
	return tryReturnsIn(filepath.Join(dir, program.Driver))
})

func tryReturnsIn(path string) (Trial, error) {
	o, err := program.Start(path, "filtered")
	if err != nil {
		return NotTried, err
	}
	defer o.Close()
	if err := o.Step(0); err != nil { // it runs, and has its filter
		return NotTried, err
	}
	seen, err := newSeen()
	if err != nil {
		return NotTried, err
	}
	defer seen.close()
	if err := seen.attach(path, o.PID()); err != nil {
		return NotTried, err
	}
	if err := o.Step(0); errors.Is(err, program.ErrEnded) {
		return Killed, nil
	} else if err != nil {
		return NotTried, err
	}
	if n, err := seen.count(); err != nil || n == 0 {
		return NotTried, fmt.Errorf("a return probe of our own was not hit: %w", err)
	}
	return Survived, nil
}

// seen counts returns.
type seen struct {
	counter *ebpf.Map
	program *ebpf.Program
	link    link.Link
}

func newSeen() (*seen, error) {
	s := &seen{}
	var err error
	if s.counter, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return nil, fmt.Errorf("make a counter: %w", err)
	}
	spec := &ebpf.ProgramSpec{
		Type: ebpf.Kprobe, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapValue(asm.R1, s.counter.FD(), 0), asm.Mov.Imm(asm.R2, 1), asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, 0), asm.Return(),
		},
	}
	if feature.HasUprobeMulti() {
		spec.AttachType = ebpf.AttachTraceUprobeMulti
	}
	if s.program, err = ebpf.NewProgram(spec); err != nil {
		s.close()
		return nil, fmt.Errorf("load a program that counts: %w", err)
	}
	return s, nil
}

// attach places a return probe on a function of our own, in one process.
func (s *seen) attach(path string, pid int) error {
	code, err := program.ReadCode()
	if err != nil {
		return err
	}
	ex, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	at := code.Offset("allocate")
	if feature.HasUprobeMulti() {
		s.link, err = ex.UretprobeMulti(nil, s.program, &link.UprobeMultiOptions{PID: uint32(pid), Addresses: []uint64{at}})
	} else {
		s.link, err = ex.Uretprobe("cuMemAlloc_v2", s.program, &link.UprobeOptions{PID: pid, Address: at})
	}
	if err != nil {
		return fmt.Errorf("attach a return probe of our own: %w", err)
	}
	return nil
}

func (s *seen) count() (n uint64, err error) {
	err = s.counter.Lookup(uint32(0), &n)
	return n, err
}

func (s *seen) close() {
	if s.link != nil {
		_ = s.link.Close()
	}
	if s.program != nil {
		_ = s.program.Close()
	}
	_ = s.counter.Close()
}

// Ask returns what is known about return probes in a process. It requires the rights to attach. tried is the result of
// an earlier trial, if there was one.
func Ask(filtered bool, tried Trial) Guard {
	g := Guard{filtered: filtered, tried: tried}
	if g.filtered && bySyscall {
		feature.ReadVersion()
		g.kernel, _ = features.LinuxVersionCode() // 0: not known
		if tried == NotTried {
			g.tried, _ = tryReturns() // without a trial the version decides
		}
	}
	return g
}

// Says returns the reason for an unsafe result.
func (g Guard) Says() string {
	if g.tried == Killed {
		return "a process of our own with such a filter was just killed by one"
	}
	return fmt.Sprintf("Linux %d.%d is one of those that may", g.kernel>>16, g.kernel>>8&0xff)
}

// Check reports whether return probes would be placed in a process, and what that rests on.
func Check(filtered bool) (safe bool, says string) { return check(filtered, tryReturns) }

func check(filtered bool, try func() (Trial, error)) (safe bool, says string) {
	g := Guard{filtered: filtered}
	if !filtered {
		return true, "it has no seccomp filter"
	}
	if !bySyscall {
		return true, "it has a seccomp filter, and return probes make no system call on this processor"
	}
	feature.ReadVersion()
	g.kernel, _ = features.LinuxVersionCode()
	var err error
	g.tried, err = try()
	switch {
	case g.tried == Survived:
		return true, "it has a seccomp filter; a process of our own with one was probed, and survived"
	case g.tried == Killed:
		return false, "it has a seccomp filter; a process of our own with one was probed, and was killed"
	default:
		return g.Safe(), fmt.Sprintf("it has a seccomp filter; that could not be tried (%v), and goes by the kernel's version", err)
	}
}
