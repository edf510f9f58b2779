//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// explain gives an attach error its exit code and the next step to take.
func explain(err error, o recordOptions) error {
	var c *codedError
	var v *ebpf.VerifierError
	switch {
	case errors.As(err, &c):
		return err
	case errors.As(err, &v): // before the permissions: the kernel says EACCES here too
		return fmt.Errorf("this kernel refuses the programs: %w\n  please report it with the output of uname -r", err)
	case errors.Is(err, process.ErrNotExist):
		return coded(exitNothing, fmt.Errorf("no process %d: %w", o.pid, err))
	case errors.Is(err, process.ErrPermission), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return coded(exitNotPermitted, fmt.Errorf("not permitted to trace pid %d: %w\n%s", o.pid, err, permissionHelp(o.pid)))
	case errors.Is(err, tracer.ErrNoCUDA):
		return coded(exitNothing, fmt.Errorf("%w\n%s", err, noCUDAHelp(o.pid)))
	case errors.Is(err, tracer.ErrNoSymbol):
		return coded(exitNothing, fmt.Errorf("%w\n  the library is of an unknown make, or damaged", err))
	}
	return err
}

// neededCapabilities are those that tracing takes, by bit number (capabilities(7), linux/capability.h).
var neededCapabilities = []struct {
	bit  uint
	name string
	why  string
}{
	{39, "CAP_BPF", "to load programs"},
	{38, "CAP_PERFMON", "to attach probes and read user memory from them"},
	{19, "CAP_SYS_PTRACE", "to read another user's process"},
}

const capSysAdmin = 21

// permissionHelp says which capability or setting is missing.
func permissionHelp(pid int) string {
	var missing []string
	caps, err := effectiveCapabilities()
	for _, c := range neededCapabilities {
		if err == nil && caps&(1<<c.bit|1<<capSysAdmin) == 0 {
			missing = append(missing, fmt.Sprintf("  missing %s (%s)", c.name, c.why))
		}
	}
	if len(missing) > 0 {
		return strings.Join(missing, "\n") + fmt.Sprintf("\n  try: sudo gputrace -p %d", pid)
	}
	if ptraceScope() == "3" {
		return scopeForbidsAll
	}
	if b, err := os.ReadFile("/sys/kernel/security/lockdown"); err == nil && strings.Contains(string(b), "[confidentiality]") {
		return "  the kernel is locked down (confidentiality): BPF may not read memory; boot with lockdown=integrity"
	}
	return "  the capabilities are there; a seccomp filter or the container's runtime may forbid bpf(2) or perf_event_open(2)"
}

const scopeForbidsAll = "  kernel.yama.ptrace_scope is 3: no process may be looked into until the next boot"

// ptraceScope is kernel.yama.ptrace_scope; empty where there is no Yama.
func ptraceScope() string {
	b, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return strings.TrimSpace(string(b))
}

func effectiveCapabilities() (uint64, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// noCUDAHelp names a child that uses CUDA, or how to wait.
func noCUDAHelp(pid int) string {
	p, err := process.Open(pid)
	if err != nil {
		return ""
	}
	for _, child := range p.Children() {
		c, err := process.Open(child)
		if err != nil {
			continue
		}
		if tracer.Traceable(c) {
			return fmt.Sprintf("  its child %d (%s) does: sudo gputrace -p %d", child, c.Name(), child)
		}
	}
	return fmt.Sprintf("  if it will load one later: sudo gputrace -p %d --wait", pid)
}
