// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
)

// ErrUnsafeReturns: what could be traced takes return probes, which would end the process.
var ErrUnsafeReturns = errors.New("return probes would end the process: this kernel puts their system call before the process's seccomp filter")

// From Linux 6.11 on a function with a return probe returns through a system call, uretprobe, which the process's seccomp filter is
// asked about; container runtimes, and systemd, refuse what they do not know, and the process is killed by SIGSEGV
// (github.com/systemd/systemd/issues/34615, github.com/seccomp/libseccomp/issues/438). Linux 6.14 exempts it, and so do later releases
// of 6.12 and 6.13: which of those was not found written, so that they count as those that do not.
const (
	uretprobeFirst  = 6<<16 | 11<<8 // LINUX_VERSION_CODE
	uretprobeExempt = 6<<16 | 14<<8
)

// trial is what became of a process of ours that had a filter and a return probe.
type trial uint8

const (
	trialNotMade trial = iota
	trialSurvived
	trialKilled
)

func (t trial) String() string { return [...]string{"not tried", "survived", "killed"}[t] }

// guard is what decides on return probes.
type guard struct {
	kernel   uint32 // LINUX_VERSION_CODE; 0: not known
	filtered bool   // a process in which they would be has a filter, or may have
	tried    trial
}

// safe reports whether return probes may be placed. What was seen decides; the version only where nothing could be.
func (g guard) safe() bool {
	switch {
	case !g.filtered || g.tried == trialSurvived:
		return true
	case g.tried == trialKilled:
		return false
	default:
		return g.kernel != 0 && (g.kernel < uretprobeFirst || g.kernel >= uretprobeExempt)
	}
}

// tryReturns finds out once what this kernel does. It takes the rights to attach.
var tryReturns = sync.OnceValues(func() (trial, error) {
	dir, err := placeOwn(ownDriver)
	if err != nil {
		return trialNotMade, err
	}
	defer os.RemoveAll(dir)
	return tryReturnsIn(filepath.Join(dir, ownDriver))
})

func tryReturnsIn(path string) (trial, error) {
	o, err := startOwn(path, "filtered")
	if err != nil {
		return trialNotMade, err
	}
	defer o.close()
	if err := o.step(0); err != nil { // runs, and has its filter
		return trialNotMade, err
	}
	seen, err := newSeen()
	if err != nil {
		return trialNotMade, err
	}
	defer seen.close()
	if err := seen.attach(path, o.cmd.Process.Pid); err != nil {
		return trialNotMade, err
	}
	if err := o.step(0); errors.Is(err, errOwnEnded) {
		return trialKilled, nil
	} else if err != nil {
		return trialNotMade, err
	}
	if n, err := seen.count(); err != nil || n == 0 {
		return trialNotMade, fmt.Errorf("a return probe of our own was not hit: %w", err)
	}
	return trialSurvived, nil
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
	if haveUprobeMulti() {
		spec.AttachType = ebpf.AttachTraceUprobeMulti
	}
	if s.program, err = ebpf.NewProgram(spec); err != nil {
		s.close()
		return nil, fmt.Errorf("load a program that counts: %w", err)
	}
	return s, nil
}

// attach puts a return probe on a function of our own, in one process.
func (s *seen) attach(path string, pid int) error {
	code, err := readOwn()
	if err != nil {
		return err
	}
	ex, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	at := code.offset("allocate")
	if haveUprobeMulti() {
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

// guard says what is known of return probes where the session would place them. Probes of a job are in a file, for each process that
// has it mapped or will have: some of those may have a filter.
func (s *Session) guard() guard {
	g := guard{filtered: true}
	if s.sole != nil {
		filtered, err := s.sole.target.Filtered()
		g.filtered = filtered || err != nil
	}
	if g.filtered {
		readVersion()
		g.kernel, _ = features.LinuxVersionCode() // 0: not known
		g.tried, _ = tryReturns()                 // not made: the version decides
	}
	return g
}

// safeProbes are those that may be placed: a call without its return is none, and a free of what was not seen to be allocated is of
// no use.
func (s *Session) safeProbes(probes []*Probe) []*Probe {
	if !slices.ContainsFunc(probes, (*Probe).returns) {
		return probes
	}
	if g := s.guard(); !g.safe() {
		s.warnUnsafe(g)
		return slices.DeleteFunc(slices.Clone(probes), (*Probe).returns)
	}
	return probes
}

// warnUnsafe says once what is missing.
func (s *Session) warnUnsafe(g guard) {
	if s.toldUnsafe {
		return
	}
	s.toldUnsafe = true
	why := "a process of our own with such a filter was just killed by one"
	if g.tried != trialKilled {
		why = fmt.Sprintf("Linux %d.%d is one of those that may", g.kernel>>16, g.kernel>>8&0xff)
	}
	s.warn(fmt.Errorf("the driver's and the runtime's calls are not traced, PyTorch's blocks are: on this kernel a return probe ends a process "+
		"that has a seccomp filter (%s); boot Linux 6.14 or newer, or run the job without a filter (seccomp=unconfined)", why))
}

// CheckReturns reports whether return probes would be placed in a process, and what that rests on.
func CheckReturns(filtered bool) (safe bool, says string) {
	g := guard{filtered: filtered}
	if !filtered {
		return true, "it has no seccomp filter"
	}
	readVersion()
	g.kernel, _ = features.LinuxVersionCode()
	var err error
	g.tried, err = tryReturns()
	switch {
	case g.tried == trialSurvived:
		return true, "it has a seccomp filter; a process of our own with one was probed, and survived"
	case g.tried == trialKilled:
		return false, "it has a seccomp filter; a process of our own with one was probed, and was killed"
	default:
		return g.safe(), fmt.Sprintf("it has a seccomp filter; that could not be tried (%v), and goes by the kernel's version", err)
	}
}
