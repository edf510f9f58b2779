// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/frameworks"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/inspect/internal/present"
	"github.com/gputrace/gputrace/internal/limits"
	"github.com/gputrace/gputrace/process"
)

// Errors on which callers branch. Those of packages inspect (ErrNoAllocator, ErrOtherBackend, ErrUnknownLayout) and
// process (ErrNotExist, ErrPermission) are returned as they are.
var (
	// ErrFreeze: Options.Freeze was asked for and the process may not be stopped.
	ErrFreeze = stop.ErrRefused
)

// Read names the holder of every live block of a process. It needs to read the process's memory (what ptrace attach would
// need); it stops nothing unless Options.Freeze says so. Where Python, its version or a layout of PyTorch is not known,
// the blocks are still listed, their category is CategoryUnknown, and Notes say why. Concurrent calls are safe.
// When ctx is done, a process that was stopped runs on at once, and the error is the cause of ctx.
func Read(ctx context.Context, p *process.Process, o *Options) (*Report, error) {
	report := &Report{PID: p.PID}
	report.setVersions(p)
	torch, absent := inspect.Find(p)
	options := Options{}
	if o != nil {
		options = *o
	}
	another := report.CuPy != "" || len(options.BFC) > 0
	if absent != nil && (!another || !errors.Is(absent, inspect.ErrNoAllocator) && !errors.Is(absent, inspect.ErrOtherBackend)) {
		return nil, absent
	}
	if options.MaxHeld == 0 {
		held, err := roomToRead()
		if err != nil {
			return nil, err
		}
		options.MaxHeld = held
	}
	code := torchlayout.NewCode(p)
	defer code.Close()
	report, err := read(ctx, &linuxProcess{p, torch}, code, report, &options)
	if err == nil && absent != nil && len(report.Devices) == 0 { // CuPy has no pool, or its objects could not be read
		return nil, absent
	}
	return report, err
}

// setVersions sets the versions of the frameworks that a process has loaded.
func (r *Report) setVersions(p *process.Process) {
	maps, err := p.Maps()
	if err != nil {
		return
	}
	for _, f := range frameworks.Of(p, maps) {
		switch f.Name {
		case frameworks.Torch:
			r.Torch = f.Version
		case frameworks.CuPy:
			r.CuPy = cmp.Or(f.Version, "of an unknown version")
		}
	}
	r.BFC = frameworks.BFC(p, maps)
}

// roomToRead returns how much of a job's memory may be held, 0 for as much as is quickest, or the reason why nothing may.
func roomToRead() (uint64, error) {
	held, err := limits.HoldersMemory()
	if err == nil && held == 0 {
		return 0, nil
	}
	debug.FreeOSMemory() // what names and tables took to make may still be ours
	return limits.HoldersMemory()
}

// linuxProcess is a process of this machine: what the kernel shows of it, and PyTorch's allocator for CUDA, nil if it has none.
type linuxProcess struct {
	*process.Process
	allocator *inspect.Allocator
}

// present implements system.
func (l *linuxProcess) present(regions []memory.Region) ([]memory.Run, []string, error) {
	return present.Runs(l.Process, regions)
}

// interpreter implements system.
func (l *linuxProcess) interpreter() (*pyobject.Heap, error) { return pyobject.FindHeap(l.Process) }

// live implements system.
func (l *linuxProcess) live(ctx context.Context, mapTimeout time.Duration) (*liveBlocks, error) {
	m := &inspect.Map{}
	if l.allocator != nil {
		var err error
		if m, err = l.allocator.MapNow(ctx, mapTimeout); err != nil {
			return nil, err
		}
	}
	blocks := newLive(m)
	if blocks.time == 0 { // there is no device whose reading has a time
		blocks.time = bootTime()
	}
	return blocks, nil
}

// bootTime is CLOCK_BOOTTIME, nanoseconds; 0 where it cannot be read.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// abi implements system.
func (l *linuxProcess) abi() torchlayout.ABI { return torchlayout.GNU }

// clock implements system.
func (l *linuxProcess) clock() uint64 { return bootTime() }

// freeze implements system.
func (l *linuxProcess) freeze(r *reading) (*liveBlocks, error) { return r.copyFrozen(l.Process) }

// threadIDs implements system.
func (l *linuxProcess) threadIDs() map[uint64]bool { return stop.OwnThreads(l.Process) }

// asleep implements system.
func (l *linuxProcess) asleep() stop.Asleep { return stop.AsleepNow(l.Process) }
