// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/doctor"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/snapshot"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/local"
)

// dump reads the allocator's map of a process and writes it in one form.
func dump(o dumpOptions) error {
	binary := o.format == "snapshot"
	if err := output.CheckTerminal(o.output, binary); err != nil {
		return err
	}
	p, err := process.Open(o.pid)
	if err != nil {
		return explainDump(err, o.pid)
	}
	driver := local.OpenDriver()
	a, err := inspect.Find(p)
	if err != nil {
		return explainDump(err, o.pid)
	}
	now := local.ReadMemory(context.Background(), p, driver, a)
	if now.StateErr != nil {
		return explainDump(now.StateErr, o.pid)
	}
	boot, err := bootTime()
	if err != nil {
		return err
	}
	content := dumpContent(o.format, p, now, readNames(p, o), boot)
	return output.Write(o.output, o.force, binary, content)
}

// bootTime is the time of day when CLOCK_BOOTTIME was 0.
func bootTime() (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}, fmt.Errorf("read the clock: %w", err)
	}
	return time.Now().Add(-time.Duration(ts.Nano())), nil
}

// blockNames are the holders of a process's blocks, or why they are not known; neither when they were not asked for.
type blockNames struct {
	holders *holders.Index
	why     string
}

// readNames looks for the who. A map is of use without them.
func readNames(p *process.Process, o dumpOptions) blockNames {
	if o.noNames {
		return blockNames{}
	}
	r, err := scan.Read(p, nil)
	if err != nil {
		return blockNames{why: err.Error()}
	}
	return blockNames{holders: holders.New(r)}
}

func dumpContent(format string, p *process.Process, m *local.Reading, n blockNames, boot time.Time) func(io.Writer) error {
	args := p.Cmdline(32)
	balance := balance.New(m.Memory().Input(p.PID))
	switch format {
	case "json":
		return func(w io.Writer) error {
			return json.WriteDump(w, json.Dump{State: m.State, PID: p.PID, Command: args, Boot: boot, Balance: balance, Holders: n.holders, HoldersWhy: n.why})
		}
	case "snapshot":
		if n.holders != nil {
			return func(w io.Writer) error { return snapshot.WriteHeld(w, m.State, n.holders) }
		}
		return func(w io.Writer) error { return snapshot.Write(w, m.State) }
	default:
		return func(w io.Writer) error {
			return table.Dump(w, table.DumpInput{
				State: m.State, PID: p.PID, Command: commandLine(args, p.Name()), Boot: boot, Balance: balance,
				Holders: n.holders, HoldersWhy: n.why,
			})
		}
	}
}

// explainDump gives an error of reading the map its exit code and the next step to take.
func explainDump(err error, pid int) error { return explainLook("dump", err, pid) }

// explainLook does so for a command that looks into a process.
func explainLook(command string, err error, pid int) error {
	switch {
	case errors.Is(err, process.ErrNotExist):
		return coded(exitNothing, fmt.Errorf("no process %d: %w", pid, err))
	case errors.Is(err, process.ErrPermission):
		return coded(exitNotPermitted, fmt.Errorf("not permitted to read pid %d: %w\n%s", pid, err, readHelp(command, pid)))
	case errors.Is(err, inspect.ErrNoAllocator):
		return coded(exitNothing, fmt.Errorf("%w\n%s", err, noAllocatorHelp(command, pid)))
	case errors.Is(err, inspect.ErrOtherBackend):
		return coded(exitNothing, fmt.Errorf("%w\n  only PyTorch's native allocator keeps books that can be read; to trace it: sudo gputrace -p %d", err, pid))
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
		return fmt.Sprintf("  kernel.yama.ptrace_scope is %s: only root may look into it\n  try: sudo gputrace %s -p %d", scope, command, pid)
	case os.Geteuid() == 0:
		return "  missing CAP_SYS_PTRACE (to read another user's process)"
	}
	return fmt.Sprintf("  it is another user's, or protected\n  try: sudo gputrace %s -p %d", command, pid)
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
	return "  it has not used PyTorch on a GPU yet, or does not at all"
}
