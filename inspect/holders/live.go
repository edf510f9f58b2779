// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"slices"
	"time"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/internal/sorts"
)

// liveBlocks are the allocated and pending blocks of all devices, sorted by address. Addresses are unique over devices:
// CUDA has one address space (unified addressing).
type liveBlocks struct {
	blocks  []Block // without holders
	devices []Device
	time    uint64
	read    time.Time
	starts  *memory.Table // address -> index
	// segments are the allocator's, sorted: start, end; start, end; ...
	segments []uint64
}

func newLive(m *inspect.Map) *liveBlocks {
	l := &liveBlocks{starts: memory.NewTable(), read: time.Now()}
	n := 0
	for _, d := range m.Devices {
		for _, s := range d.Segments {
			n += len(s.Blocks)
		}
	}
	l.blocks = make([]Block, 0, n) // of a job that leaks there can be a million
	for i := range m.Devices {
		l.add(&m.Devices[i], allocator.Torch)
	}
	l.sort()
	return l
}

// add adds the blocks of one map, which is an allocator's.
func (l *liveBlocks) add(d *inspect.DeviceMap, of allocator.Allocator) {
	l.devices = append(l.devices, Device{
		DeviceTotals: d.DeviceTotals, Allocator: of, Name: d.Name, Host: d.Host, Active: d.Active, Changing: d.Changing,
	})
	l.time = max(l.time, d.Time)
	for _, s := range d.Segments {
		l.segments = append(l.segments, s.Addr, s.Addr+s.Size)
		for _, b := range s.Blocks {
			if b.State == inspect.StateAllocated || b.State == inspect.StatePending {
				l.blocks = append(l.blocks, Block{Block: b, Device: d.Device, Host: d.Host, Allocator: of, Pool: s.Pool})
			}
		}
	}
}

// sort puts the blocks in order once all are there.
func (l *liveBlocks) sort() {
	sorts.Func(l.blocks, func(a, b Block) int { return cmp.Compare(a.from(), b.from()) })
	slices.Sort(l.segments) // they do not overlap
	for i := range l.blocks {
		l.starts.Set(l.blocks[i].from(), uint32(i))
	}
}

// span is where a tensor's address of its memory lies when the block is that memory.
func (b *Block) span() (from, size uint64) {
	if b.object != 0 {
		return b.object, 1
	}
	return b.Addr, b.Size
}

func (b *Block) from() uint64 {
	from, _ := b.span()
	return from
}

// changing reports whether some of the devices did not stand still.
func (l *liveBlocks) changing() bool {
	return slices.ContainsFunc(l.devices, func(d Device) bool { return d.Changing != nil })
}

// at is the block that begins at an address.
func (l *liveBlocks) at(addr uint64) (int, bool) {
	if addr == 0 {
		return 0, false
	}
	i, ok := l.starts.Get(addr)
	return int(i), ok
}

// Requested implements torchlayout.Blocks.
func (l *liveBlocks) Requested(addr uint64) (bytes uint64, ok bool) {
	i, ok := l.at(addr)
	if !ok {
		return 0, false
	}
	return l.blocks[i].Requested, true
}

// around is the block that an address lies in.
func (l *liveBlocks) around(addr uint64) (int, bool) {
	i, found := slices.BinarySearchFunc(l.blocks, addr, func(b Block, a uint64) int { return cmp.Compare(b.from(), a) })
	if !found {
		i--
	}
	if i >= 0 {
		from, size := l.blocks[i].span()
		return i, addr-from < size
	}
	return 0, false
}

// segment reports whether an address lies in memory of the allocator, used or not.
func (l *liveBlocks) segment(addr uint64) bool {
	i, found := slices.BinarySearch(l.segments, addr)
	if found { // an end may be the next one's start
		return i%2 == 0 || i+1 < len(l.segments) && l.segments[i+1] == addr
	}
	return i%2 == 1
}
