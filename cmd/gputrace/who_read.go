// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/local"
)

// shownOthers is the number of further holders of one block that are shown.
const shownOthers = 20

// showHolders reads the holders of the memory of processes, one process after the other, and prints them.
func showHolders(o whoOptions) error {
	var contents []func(io.Writer) error
	for _, pid := range o.pids {
		content, err := readHolders(o, pid)
		if err != nil {
			return err
		}
		contents = append(contents, content)
	}
	return output.Write(o.output, o.force, false, output.Joined(contents, !o.json))
}

// readHolders reads the holders of one process.
func readHolders(o whoOptions, pid int) (func(io.Writer) error, error) {
	p, err := process.Open(pid)
	if err != nil {
		return nil, advice.Look("who", err, pid)
	}
	options := &scan.Options{Freeze: o.freeze}
	if o.one {
		options.Others = shownOthers
	}
	ctx, stop := untilInterrupted()
	defer stop()
	done := progress.Doing(os.Stderr, reading(pid))
	report, err := readReport(ctx, p, options)
	done()
	if ctx.Err() != nil {
		return nil, errInterrupted
	}
	if err != nil {
		return nil, advice.Look("who", p.Blame(err), pid)
	}
	boot, err := bootTime()
	if err != nil {
		return nil, err
	}
	return whoContent(o, p, holders.New(report), boot)
}

// readReport finds the allocators of TensorFlow and JAX, and reads the holders of all blocks. If there is no allocator, CuPy's pool may be
// the only one.
func readReport(ctx context.Context, p *process.Process, o *scan.Options) (*scan.Report, error) {
	a, err := local.FindAllocators(ctx, p)
	if err == nil {
		o.BFC = a.BFC()
	}
	report, readErr := scan.Read(ctx, p, o)
	if readErr == nil && a != nil {
		report.Notes = append(report.Notes, a.Notes()...)
	}
	if errors.Is(readErr, inspect.ErrNoAllocator) && (errors.Is(err, bfc.ErrNoAllocator) || errors.Is(err, bfc.ErrUnproved)) {
		return nil, err
	}
	return report, readErr
}

func whoContent(o whoOptions, p *process.Process, h *holders.Index, boot time.Time) (func(io.Writer) error, error) {
	block := -1
	if o.one {
		var ok bool
		if block, ok = h.At(o.address); !ok {
			return nil, fmt.Errorf("--address %#x: not in a live block of pid %d\n  gputrace dump -p %d lists all blocks, also free ones",
				o.address, o.pids[0], o.pids[0])
		}
	}
	args, paused := p.Cmdline(32), p.Paused()
	in := table.WhoInput{Holders: h, Command: commandLine(args, p.Name()), Paused: paused.After(), Boot: boot, By: o.by, Top: o.top,
		Width: console.Width(o.output)}
	return func(w io.Writer) error {
		switch {
		case o.json:
			return json.WriteWho(w, json.Who{Holders: h, Command: args, Paused: paused.String(), Boot: boot, By: o.by, Top: o.top, Only: block})
		case o.one:
			return table.WhoBlock(w, in, block)
		default:
			return table.Who(w, in)
		}
	}, nil
}
