// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/snapshot"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/inspect/frameworks"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/local"
)

// dump reads the allocator's map of a process and writes it in one format.
func dump(o dumpOptions) error {
	binary := o.format == "snapshot"
	if err := output.CheckTerminal(o.output, binary); err != nil {
		return err
	}
	p, err := process.Open(o.pid)
	if err != nil {
		return advice.Look("dump", err, o.pid)
	}
	ctx, stop := untilInterrupted()
	defer stop()
	done := progress.Doing(os.Stderr, reading(o.pid))
	defer done()
	driver := local.OpenDriver()
	a, err := local.FindAllocators(ctx, p)
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return advice.Look("dump", p.Blame(err), o.pid)
	}
	now := local.ReadMemory(ctx, p, driver, a)
	if now.StateErr != nil && ctx.Err() == nil {
		return advice.Look("dump", p.Blame(now.StateErr), o.pid)
	}
	names := readNames(ctx, p, a, o)
	if ctx.Err() != nil {
		return errInterrupted
	}
	boot, err := bootTime()
	if err != nil {
		return err
	}
	content := dumpContent(o, p, &dumped{now, names, boot, a.Notes()})
	done()
	return output.Write(o.output, o.force, binary, content)
}

// reading returns the message while a process's memory is read.
func reading(pid int) string { return fmt.Sprintf("reading the memory of pid %d, Ctrl-C ends it", pid) }

// errInterrupted means that the user interrupted the command.
var errInterrupted = coded(exitInterrupted, errors.New("interrupted"))

// untilInterrupted returns a context that is done when the user or a supervisor ends the command, after continuing a stopped process.
func untilInterrupted() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
}

// bootTime returns the time of day when CLOCK_BOOTTIME was 0.
func bootTime() (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}, fmt.Errorf("read the clock: %w", err)
	}
	return time.Now().Add(-time.Duration(ts.Nano())), nil
}

// blockNames are the holders of a process's blocks, or why they are not known; both are nil when they were not requested.
type blockNames struct {
	holders *holders.Index
	why     string
}

// readNames reads the holders. If that fails, the map is still useful.
func readNames(ctx context.Context, p *process.Process, a *local.Allocators, o dumpOptions) blockNames {
	if o.noNames {
		return blockNames{}
	}
	r, err := scan.Read(ctx, p, &scan.Options{BFC: a.BFC()})
	if err != nil {
		return blockNames{why: p.Blame(err).Error()}
	}
	return blockNames{holders: holders.New(r)}
}

// dumped is what was read of a process.
type dumped struct {
	memory *local.Reading
	names  blockNames
	boot   time.Time // when CLOCK_BOOTTIME was 0
	notes  []string
}

func dumpContent(o dumpOptions, p *process.Process, d *dumped) func(io.Writer) error {
	args, paused, m, n := p.Cmdline(32), p.Paused(), d.memory, d.names
	balance := balance.New(m.Memory().Input(p.PID))
	switch o.format {
	case "json":
		return func(w io.Writer) error {
			return json.WriteDump(w, json.Dump{State: m.State, PID: p.PID, Command: args, Paused: paused.String(), Boot: d.boot, Balance: balance,
				Holders: n.holders, HoldersWhy: n.why, Notes: d.notes})
		}
	case "snapshot":
		if n.holders != nil {
			return func(w io.Writer) error { return snapshot.WriteHeld(w, m.State, n.holders) }
		}
		return func(w io.Writer) error { return snapshot.Write(w, m.State) }
	default:
		maps, _ := p.Maps() // without them, the names of frameworks are not known
		return func(w io.Writer) error {
			return table.Dump(w, table.DumpInput{
				State: m.State, PID: p.PID, Command: commandLine(args, p.Name()), Paused: paused.After(), Boot: d.boot, Balance: balance,
				Holders: n.holders, HoldersWhy: n.why, Width: console.Width(o.output), Frameworks: frameworks.BFC(p, maps), Notes: d.notes,
			})
		}
	}
}
