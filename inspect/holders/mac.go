// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"context"
	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/process"
)

// Mac is a process of macOS that is asked for its memory.
type Mac interface {
	process.Memory
	memory.Pager
	// Maps lists what is mapped, sorted by address: segments of images have a path and an inode that is not 0.
	Maps() ([]process.Mapping, error)
	// Present lists the pages of a range that are there, of 4,096 bytes each, by the first page and how many.
	Present(start, end uint64) ([][2]uint64, error)
	// Sizes says what malloc gave objects, each by its address and where its memory would begin: the word at the first, and how many bytes
	// were asked for at the second, at least; 0: it is not known.
	Sizes(places [][2]uint64) (answers [][2]uint64, err error)
	// Interpreter is where its Python is.
	Interpreter() (*cpython.Interpreter, error)
	// Live are the live blocks of PyTorch's allocator, and when they were, on the clock of the events.
	Live(ctx context.Context) (blocks []MacBlock, at uint64, err error)
}

// MacBlock is a live block of PyTorch's allocator for MPS.
type MacBlock struct {
	Addr, Size, Requested uint64 // of the block as the recording has it, bytes
	// Buffer is the address of its MTLBuffer, which tensors have for that of their memory.
	Buffer uint64
}

// ReadMac names the holder of every live block of a process of macOS, as Read does. It stops nothing.
func ReadMac(ctx context.Context, pid int, m Mac, o *Options) (*Report, error) {
	return read(ctx, &macProcess{m}, nil, &Report{PID: pid}, o)
}

// macProcess implements system.
type macProcess struct{ Mac }

// Environ implements system: workspaces of CUDA's libraries, which depend on it, are not there.
func (m *macProcess) Environ() ([]string, error) { return nil, nil }

// maxPresent bounds the address space whose pages are looked up, bytes.
const maxPresent = 1 << 40

func (m *macProcess) present(regions []memory.Region) (runs []memory.Run, notes []string, err error) {
	budget := uint64(maxPresent)
	for i := range regions {
		r := &regions[i]
		if !r.Heap || r.End-r.Start > budget {
			continue
		}
		budget -= r.End - r.Start
		there, err := m.Present(r.Start, r.End)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range there {
			runs = append(runs, memory.Run{Addr: p[0], Pages: p[1]})
		}
	}
	return runs, nil, nil
}

func (m *macProcess) interpreter() (*pyobject.Heap, error) {
	found, err := m.Interpreter()
	if err != nil {
		return nil, err
	}
	return pyobject.HeapAt(m.Mac, found.Version, found.Runtime, found.Type)
}

func (m *macProcess) live(ctx context.Context, _ time.Duration) (*liveBlocks, error) {
	blocks, at, err := m.Live(ctx)
	if err != nil {
		return nil, err
	}
	l := &liveBlocks{starts: memory.NewTable(), time: at, read: time.Now(), devices: []Device{{}}}
	d := &l.devices[0]
	for i := range blocks {
		b := &blocks[i]
		l.blocks = append(l.blocks, Block{
			Block:  inspect.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested, State: inspect.StateAllocated},
			object: b.Buffer,
		})
		l.segments = append(l.segments, b.Buffer, b.Buffer+1)
		d.Active += b.Size
	}
	d.Allocated = d.Active
	l.sort()
	return l, nil
}

// threadIDs implements system: they are taken as the interpreter has them.
func (m *macProcess) threadIDs() map[uint64]bool { return nil }

func (m *macProcess) asleep() stop.Asleep { return nil }

func (m *macProcess) abi() torchlayout.ABI { return torchlayout.Apple(m.Mac) }

// clock implements system: nothing reads it.
func (m *macProcess) clock() uint64 { return 0 }

// freeze implements system: it is never asked for.
func (m *macProcess) freeze(r *reading) (*liveBlocks, error) { return r.copyNow() }
