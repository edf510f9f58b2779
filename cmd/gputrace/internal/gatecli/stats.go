// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gatecli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
)

// readStats reads what the allocator of a process counts.
func readStats(pid int) ([]figures.MemoryStats, error) {
	p, err := process.Open(pid)
	if err != nil {
		return nil, advice.Look("summary", err, pid)
	}
	a, err := inspect.Find(p)
	if err != nil {
		return nil, advice.Look("summary", p.Blame(err), pid)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	all, err := a.MemoryStats(ctx)
	if err != nil {
		return nil, advice.Look("summary", p.Blame(err), pid)
	}
	return slices.DeleteFunc(allocator.Stats(all), func(s figures.MemoryStats) bool { return s.Empty() }), nil
}
