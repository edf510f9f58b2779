// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package advice

import (
	"errors"
	"fmt"
	"os"

	"github.com/gputrace/gputrace/doctor"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
)

// Look adds the exit code and the next step to take to an error of a command that reads a process's memory, dump or who.
func Look(command string, err error, pid int) error {
	hindrance := doctor.FindReading(err)
	switch {
	case hindrance != nil:
		return explainHindrance(hindrance, err)
	case errors.Is(err, holders.ErrFreeze):
		return fmt.Errorf("%w\n  without --freeze the process is read as it runs, and names are checked by reading again", err)
	case errors.Is(err, process.ErrEnded) && !errors.As(err, new(*process.EndedError)):
		return exit.With(exit.TargetEnded, exit.Say(fmt.Sprintf("pid %d ended while its memory was read: nothing is known about it", pid), err))
	case errors.Is(err, process.ErrNotExist):
		return noProcess(err, pid)
	case errors.Is(err, process.ErrPermission):
		return exit.With(exit.NotPermitted, exit.Say(fmt.Sprintf("not permitted to read pid %d\n%s", pid, readHelp(command, pid)), err))
	case errors.Is(err, bfc.ErrUnproved):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n  it has taken no memory yet, or this build of TensorFlow or JAX is not known: "+
			"nothing is shown rather than something wrong; to trace it: sudo gputrace -p %d", err, pid))
	case errors.Is(err, bfc.ErrChanged):
		return fmt.Errorf("%w\n  the program allocated without a pause: try again", err)
	case errors.Is(err, bfc.ErrNoAllocator):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n  other allocators of TensorFlow and JAX, such as cuda_async and platform, "+
			"leave their memory to CUDA, which has no list that can be read; to trace its calls: sudo gputrace -p %d", err, pid))
	case errors.Is(err, inspect.ErrNoAllocator):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n%s", err, noAllocatorHelp(command, pid)))
	case errors.Is(err, inspect.ErrOtherBackend):
		return exit.With(exit.Nothing, fmt.Errorf("%w\n  only PyTorch's native allocator has a state that can be read; to trace it: sudo "+
			"gputrace -p %d", err, pid))
	case errors.Is(err, inspect.ErrUnknownLayout):
		return fmt.Errorf("%w\n  this build of PyTorch is not known; nothing is shown rather than something wrong", err)
	}
	return err
}

// readHelp says what forbids to read another process, and how to be allowed (ptrace(2), "Ptrace access mode checking").
func readHelp(command string, pid int) string {
	scope := doctor.PtraceScope()
	switch {
	case scope == "3":
		return scopeForbidsAll
	case scope != "" && scope != "0":
		return fmt.Sprintf("  kernel.yama.ptrace_scope is %s: only root may read it\n  try: sudo gputrace %s -p %d", scope, command, pid)
	case os.Geteuid() == 0:
		return rootHelp()
	}
	return fmt.Sprintf("  it is another user's, or protected\n  try: sudo gputrace %s -p %d", command, pid)
}

// rootHelp says what root lacks to read a process; where it lacks nothing, what else may forbid it.
func rootHelp() string {
	missing, err := doctor.Missing()
	for _, c := range missing {
		if c.Name == "CAP_SYS_PTRACE" {
			return fmt.Sprintf("  missing %s (%s)", c.Name, c.Why)
		}
	}
	if err != nil {
		return "  which capability is missing is not known: " + err.Error()
	}
	return noneMissing
}

// noAllocatorHelp names a child that has an allocator, if there is one.
func noAllocatorHelp(command string, pid int) string {
	if p, err := process.Open(pid); err == nil {
		for _, child := range p.Children() {
			c, err := process.Open(child)
			if err != nil {
				continue
			}
			if _, err := inspect.Find(c); err == nil {
				return fmt.Sprintf("  its child %d (%s) has one: gputrace %s -p %d", child, c.Name(), command, child)
			}
		}
	}
	return "  it has not used PyTorch, TensorFlow or JAX on a GPU yet, or does not at all"
}
