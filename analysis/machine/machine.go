// SPDX-License-Identifier: Apache-2.0

// Package machine is what there is to trace on a machine: the processes that use a GPU, what the driver and their own allocators say of
// their memory, and what could not be seen.
package machine

import (
	"cmp"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Memory is what a process uses on one device.
type Memory struct {
	Device    int    // as the program numbers it; -1: not known
	Name      string // of the device; empty: not known
	Driver    uint64 // by NVML, bytes; event.Unknown
	Allocated uint64 // by the allocator's own totals, bytes; event.Unknown
	Reserved  uint64 // the same of its segments
}

// Process is a process that uses a GPU.
type Process struct {
	PID        int
	Parent     int
	User       string // a number where it has no name; empty: not known
	Container  string // runtime and short ID; empty: none
	Name       string // of the program
	Command    []string
	Frameworks []string // with their versions
	Devices    []Memory // empty: none is known to be in use
	Driver     bool     // the GPU driver's library is mapped, or NVML lists the process
	// Unused: it has PyTorch's allocator, which has no memory so far.
	Unused bool
	// Paused says why it does not run: stopped by a signal, held by a debugger, frozen. Empty: it runs.
	Paused string
	// Why says what is not known of its memory, and why; empty: all is known.
	Why string
	// Workers are processes that were forked from this one after it had used the GPU, which they cannot: data loaders.
	Workers []int
}

// Allocated is the sum over devices; event.Unknown where that of a device is not known, and where no device is.
func (p *Process) Allocated() uint64 {
	return p.allocator(func(m *Memory) uint64 { return m.Allocated })
}

// Reserved is the same of the allocator's segments.
func (p *Process) Reserved() uint64 { return p.allocator(func(m *Memory) uint64 { return m.Reserved }) }

// DriverBytes is the same of what the driver says.
func (p *Process) DriverBytes() uint64 { return p.sum(func(m *Memory) uint64 { return m.Driver }) }

func (p *Process) allocator(of func(*Memory) uint64) uint64 {
	if p.Unused {
		return 0
	}
	return p.sum(of)
}

func (p *Process) sum(of func(*Memory) uint64) uint64 {
	total := uint64(0)
	for i := range p.Devices {
		n := of(&p.Devices[i])
		if n == event.Unknown {
			return event.Unknown
		}
		total += n
	}
	if len(p.Devices) == 0 {
		return event.Unknown
	}
	return total
}

// size is what processes are sorted by: the most that is said of their memory.
func (p *Process) size() uint64 {
	most := uint64(0)
	for _, n := range []uint64{p.DriverBytes(), p.Reserved(), p.Allocated()} {
		if n != event.Unknown {
			most = max(most, n)
		}
	}
	return most
}

// used reports whether the process is known to have memory on a GPU.
func (p *Process) used() bool { return p.size() > 0 }

// GPU is a device of the machine.
type GPU struct {
	Index       int
	Name        string
	Used, Total uint64 // bytes; event.Unknown
}

// Report is what there is to trace.
type Report struct {
	GPUs      []GPU
	Processes []Process // that use a GPU, the largest first
	Idle      []Process // that have a framework loaded and the driver not: they have not used a GPU so far
	Searched  int       // processes that were looked at
	Hidden    int       // processes of others that we may not look into
	Python    int       // of Hidden, those that look like Python
	Missing   []string  // what could not be seen, and what shows it: a sentence each
}

// New sorts what was found: workers to the process that they were forked from, what uses a GPU to the front.
func New(found []Process) *Report {
	r := &Report{}
	byPID := make(map[int]*Process, len(found))
	for i := range found {
		byPID[found[i].PID] = &found[i]
	}
	for i := range found {
		p := &found[i]
		if parent := forkedFrom(p, byPID); parent != nil {
			parent.Workers = append(parent.Workers, p.PID)
		}
	}
	for i := range found {
		p := &found[i]
		switch {
		case forkedFrom(p, byPID) != nil:
		case p.Driver:
			r.Processes = append(r.Processes, *p)
		default:
			r.Idle = append(r.Idle, *p)
		}
	}
	sorts.Func(r.Processes, func(a, b Process) int {
		return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(a.PID, b.PID))
	})
	sorts.Func(r.Idle, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return r
}

// maxDepth bounds how far up ancestors are followed.
const maxDepth = 16

// forkedFrom is the process of which one is a copy that cannot use the GPU: it runs the same command line, as only a fork without exec
// does, its ancestor had used the GPU (CUDA does not survive a fork: CUDA C++ Programming Guide, "Initialization"), and the driver does not
// list it. Its allocator's totals are a copy too. nil: it is one of its own.
func forkedFrom(p *Process, byPID map[int]*Process) *Process {
	if d := p.DriverBytes(); d != event.Unknown && d > 0 {
		return nil
	}
	var out *Process
	for at, depth := p, 0; depth < maxDepth; depth++ {
		parent := byPID[at.Parent]
		if parent == nil || parent == p || !sameCommand(p, parent) {
			break
		}
		if parent.used() || parent.Why != "" {
			out = parent
		}
		at = parent
	}
	return out
}

func sameCommand(a, b *Process) bool {
	if len(a.Command) != len(b.Command) || len(a.Command) == 0 {
		return false
	}
	for i := range a.Command {
		if a.Command[i] != b.Command[i] {
			return false
		}
	}
	return true
}
