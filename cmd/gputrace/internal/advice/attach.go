// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package advice

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/doctor"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/feature"
)

// explainAttach adds the exit code and the next step to take to an attach error. pid 0: whichever process.
func explainAttach(err error, pid int) error {
	var v *ebpf.VerifierError
	hindrance := doctor.Find(err)
	switch {
	case hindrance != nil:
		return explainHindrance(hindrance, err)
	case errors.Is(err, tracer.ErrNotLoaded) && !forbidden(err):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n  nothing was attached; to find out more: gputrace doctor", refusal{err}))
	case errors.Is(err, tracer.ErrUnsafeReturns):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n  nothing was attached; boot Linux 6.14 or newer, or run the job without a filter "+
			"(seccomp=unconfined)", err))
	case errors.As(err, &v): // before the permissions: the kernel says EACCES here too
		cause, _, _ := strings.Cut(v.Error(), "\n")
		return exit.Say("this kernel refuses the programs: "+cause+"\n  please report it with the output of this command with -v, and "+
			"of uname -r", err)
	case errors.Is(err, process.ErrEnded) && !errors.As(err, new(*process.EndedError)):
		return exit.With(exit.TargetEnded, exit.Say(fmt.Sprintf("pid %d ended during the attach: nothing was recorded", pid), err))
	case errors.Is(err, process.ErrNotExist):
		return noProcess(err, pid)
	case errors.As(err, new(*process.KernelError)):
		return exit.With(exit.Nothing, err)
	case errors.Is(err, process.ErrPrivate):
		return exit.With(exit.NotPermitted, err)
	case errors.Is(err, process.ErrPermission), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return exit.With(exit.NotPermitted, exit.Say(fmt.Sprintf("not permitted to trace %s\n%s", processName(pid), permissionHelp(pid)), err))
	case errors.Is(err, tracer.ErrNoCUDA):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n%s", err, noCUDAHelp(pid)))
	case errors.Is(err, tracer.ErrNoSymbol):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n  the library is an unknown build, or damaged", err))
	}
	return err
}

// explainHindrance says what is in the way around gputrace, and how to clear it.
func explainHindrance(h *doctor.Hindrance, err error) error {
	code := exit.NotPermitted
	if h.Missing {
		code = exit.Nothing
	}
	return exit.With(code, exit.Say(h.Error(), err))
}

// noProcess says that there is no such process, or of which one it is a thread.
func noProcess(err error, pid int) error {
	text := fmt.Sprintf("no process %d", pid)
	if ended := new(process.EndedError); errors.As(err, &ended) {
		text = ended.Error()
	}
	if thread := new(process.ThreadError); errors.As(err, &thread) {
		text = thread.Error()
	}
	return exit.With(exit.Nothing, exit.Say(text+"\n  to list those that use a GPU: gputrace", err))
}

// forbidden reports whether programs were refused for want of a right. The verifier, which refuses what a program does, says EACCES
// too.
func forbidden(err error) bool {
	var v *ebpf.VerifierError
	return !errors.As(err, &v) && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES))
}

// refusal says in a sentence why this kernel did not take the programs.
type refusal struct{ error }

func (r refusal) Error() string { return feature.Refusal(r.error) }
func (r refusal) Unwrap() error { return r.error }

// processName names what is to be traced.
func processName(pid int) string {
	if pid == 0 {
		return "a job"
	}
	return fmt.Sprintf("pid %d", pid)
}

// permissionHelp says which capability or setting is missing, and the lines that give it.
func permissionHelp(pid int) string {
	var lines []string
	missing, _ := doctor.Missing()
	for _, c := range missing {
		lines = append(lines, fmt.Sprintf("  missing %s (%s)", c.Name, c.Why))
	}
	if len(missing) > 0 {
		give := doctor.Give()
		if give[0].Where == "host" { // else sudo cannot give them either
			lines = append(lines, trySudo(pid))
		}
		lines = append(lines, "  or give it the capabilities once:")
		for _, f := range give {
			lines = append(lines, fmt.Sprintf("    %-11s %s", f.Where+":", f.Line))
		}
		return strings.Join(lines, "\n")
	}
	if doctor.InnerUserNamespace() {
		return "  gputrace is in a user namespace of its own, as in a rootless container, and its capabilities do not count for BPF\n" +
			"  run it outside of the container, as root: it traces processes in containers too"
	}
	if doctor.PtraceScope() == "3" {
		return scopeForbidsAll
	}
	if doctor.LockedDown() {
		return "  the kernel is locked down (confidentiality): BPF may not read memory; boot with lockdown=integrity"
	}
	return noneMissing
}

// trySudo is the simplest line that gives rights.
func trySudo(pid int) string {
	if pid == 0 { // of a job
		return "  try the same with sudo"
	}
	return fmt.Sprintf("  try: sudo gputrace -p %d", pid)
}

// noneMissing is for a process that may not be read although gputrace has every capability for that.
const noneMissing = "  no capability is missing: the process is in another user namespace, or a security module protects it; " +
	"try on the host, outside of containers"

const scopeForbidsAll = "  kernel.yama.ptrace_scope is 3: no process can be read until the next boot"

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
			return fmt.Sprintf("  its child %d (%s) does: sudo gputrace -p %d, or all of them: -p %d --children", child, c.Name(), child, pid)
		}
	}
	return fmt.Sprintf("  if it will load one later: sudo gputrace -p %d --wait", pid)
}
