// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Block is one tile of a segment, as the allocator knows it.
type Block = inspect.Block

// ChangingBlocks is what of a map did not stand still while it was read.
type ChangingBlocks = inspect.Changing

// State is what the caching allocator's own map of memory adds up to.
type State struct {
	Devices []DeviceState // by their number; also those without memory
}

// DeviceState is the figures of one device, or of one BFC allocator.
type DeviceState struct {
	// Allocator is whose memory it is, Name the allocator's name, such as "GPU_0_bfc"; empty of PyTorch's.
	Allocator allocator.Allocator
	Name      string
	Host      bool // the memory is the host's, and the number of the device means nothing
	// Memory is that of the blocks that stood still while they were read: all of them unless Changing is set.
	Memory
	// Changing is what did not stand still, ChangingBytes how many bytes of segments that is. nil: all did.
	Changing      *ChangingBlocks
	ChangingBytes uint64
	// Active is the bytes of allocated and pending blocks by the allocator's own count.
	Active uint64
	// Counted is the allocator's own totals, which it keeps apart from its map. They are equal to Allocated and Reserved
	// in a map that balances.
	Counted  inspect.DeviceTotals
	Time     uint64         // when it was read, CLOCK_BOOTTIME, nanoseconds
	Pools    []PoolState    // the common ones first, then by id; large before small
	Segments []SegmentState // by address
}

// Unexplained is the bytes reserved by the allocator's own count that are in none of the four parts, nor changing, less those
// that are in too many. It is 0 in a map that balances.
func (d *DeviceState) Unexplained() int64 {
	return int64(d.Counted.Reserved - d.Allocated - d.Pending - d.InactiveSplit - d.Free - d.ChangingBytes)
}

// Miscounted is the bytes allocated by the allocator's own count, less those of the blocks. It is 0 in a map that balances, and
// not known of one of which parts changed: then it is 0, too.
func (d *DeviceState) Miscounted() int64 {
	if d.Changing != nil {
		return 0
	}
	return int64(d.Counted.Allocated - d.Allocated)
}

// PoolState is the figures of one pool of one device.
type PoolState struct {
	Memory
	Pool inspect.Pool
}

// SegmentState is the figures of one segment.
type SegmentState struct {
	Memory
	Changing         uint64 // bytes of the parts whose blocks changed while they were read
	*inspect.Segment        // shared with the map
}

// FreeBytes is the bytes of the segment that no block holdsin inactive splits or as a whole.
func (s *SegmentState) FreeBytes() uint64 { return s.InactiveSplit + s.Free }

// FreeBlocks lists the free blocks, largest first.
func (s *SegmentState) FreeBlocks() []Block {
	out := s.blocks(vacant)
	slices.SortStableFunc(out, func(x, y Block) int { return cmp.Compare(y.Size, x.Size) })
	return out
}

// Pins lists the blocks that keep the segment from being returned to the driver, by address.
func (s *SegmentState) Pins() []Block {
	return s.blocks(Held)
}

func (s *SegmentState) blocks(of func(*Block) bool) []Block {
	var out []Block
	for i := range s.Blocks {
		if of(&s.Blocks[i]) {
			out = append(out, s.Blocks[i])
		}
	}
	return out
}

// Held reports whether a block is not free: the program holds it, or another stream's work does.
func Held(b *Block) bool { return b.State == inspect.StateAllocated || b.State == inspect.StatePending }

// Changing reports whether a block is none, but a part of a segment whose blocks changed while they were read.
func Changing(b *Block) bool { return b.State == inspect.StateChanging }

func vacant(b *Block) bool { return b.State == inspect.StateFree }

// Pending reports whether a block was given back and waits for another stream's work.
func Pending(b *Block) bool { return b.State == inspect.StatePending }

// New adds up a map. The map must not change afterwards: it is shared.
func New(m *inspect.Map) *State {
	out := &State{Devices: make([]DeviceState, len(m.Devices))}
	for i := range m.Devices {
		out.Devices[i] = newDeviceState(&m.Devices[i])
	}
	return out
}

func newDeviceState(m *inspect.DeviceMap) DeviceState {
	d := DeviceState{
		Name: m.Name, Host: m.Host, Counted: m.DeviceTotals, Active: m.Active, Changing: m.Changing, Time: m.Time,
		Segments: make([]SegmentState, len(m.Segments)),
	}
	if m.Name != "" {
		d.Allocator = allocator.BFC
	}
	pools := map[inspect.Pool]*Memory{}
	for i := range m.Segments {
		s := &m.Segments[i]
		d.Segments[i] = SegmentState{Segment: s}
		d.Segments[i].Memory, d.Segments[i].Changing = segmentMemory(s)
		d.ChangingBytes += d.Segments[i].Changing
		d.add(&d.Segments[i].Memory)
		if pools[s.Pool] == nil {
			pools[s.Pool] = &Memory{}
		}
		pools[s.Pool].add(&d.Segments[i].Memory)
	}
	for p, memory := range pools {
		d.Pools = append(d.Pools, PoolState{*memory, p})
	}
	sorts.Func(d.Pools, func(x, y PoolState) int { return comparePools(x.Pool, y.Pool) })
	return d
}

// segmentMemory adds up the blocks of a segment, apart from what changed.
func segmentMemory(s *inspect.Segment) (m Memory, changing uint64) {
	m = Memory{Reserved: s.Size, SegmentCount: 1}
	for _, b := range s.Blocks {
		switch b.State {
		case inspect.StateAllocated:
			m.Allocated, m.Requested, m.AllocatedCount = m.Allocated+b.Size, figures.Add(m.Requested, b.Requested), m.AllocatedCount+1
		case inspect.StatePending:
			m.Pending, m.PendingCount = m.Pending+b.Size, m.PendingCount+1
		case inspect.StateChanging:
			changing += b.Size
		default:
			m.InactiveSplit, m.InactiveSplitCount, m.LargestInactiveSplit = m.InactiveSplit+b.Size, m.InactiveSplitCount+1,
				max(m.LargestInactiveSplit, b.Size)
		}
	}
	if m.AllocatedCount+m.PendingCount == 0 && changing == 0 {
		m.Free, m.FreeSegmentCount = m.InactiveSplit, 1
		m.InactiveSplit, m.InactiveSplitCount, m.LargestInactiveSplit = 0, 0, 0
	}
	return m, changing
}

func comparePools(x, y inspect.Pool) int {
	small := func(p inspect.Pool) int {
		if p.Small {
			return 1
		}
		return 0
	}
	return cmp.Or(slices.Compare(x.ID[:], y.ID[:]), cmp.Compare(small(x), small(y)))
}

// MostFree returns the n segments with the most bytes that no block holds, and how many with such bytes there are in all.
func (d *DeviceState) MostFree(n int) (most []SegmentState, all int) {
	for i := range d.Segments {
		if d.Segments[i].FreeBytes() > 0 {
			most = append(most, d.Segments[i])
		}
	}
	slices.SortStableFunc(most, func(x, y SegmentState) int { return cmp.Compare(y.FreeBytes(), x.FreeBytes()) })
	return most[:min(n, len(most))], len(most)
}

// MostSplit returns the n segments with the most bytes in inactive splits: those that their blocks keep from being returned.
func (d *DeviceState) MostSplit(n int) []SegmentState {
	var most []SegmentState
	for i := range d.Segments {
		if d.Segments[i].InactiveSplitCount > 0 {
			most = append(most, d.Segments[i])
		}
	}
	slices.SortStableFunc(most, func(x, y SegmentState) int { return cmp.Compare(y.InactiveSplit, x.InactiveSplit) })
	return most[:min(n, len(most))]
}

// Torch is the memory of each allocator by device, also of devices without any; host memory is left out.
func (b *State) Torch() []figures.TorchMemory {
	out := make([]figures.TorchMemory, 0, len(b.Devices))
	for i := range b.Devices {
		d := &b.Devices[i]
		if d.Host {
			continue
		}
		m := d.counted()
		row := figures.TorchMemory{
			Device: d.Counted.Device, Reserved: figures.Bytes(m.Reserved), Allocated: figures.Bytes(m.Allocated),
			Requested: figures.Bytes(m.Requested), Pending: figures.Bytes(m.Pending), InactiveSplit: figures.Bytes(m.InactiveSplit),
			Free: figures.Bytes(m.Free), Largest: figures.Bytes(d.LargestFree()), Allocator: d.Allocator,
		}
		same := func(t figures.TorchMemory) bool { return t.Device == row.Device && t.Allocator == row.Allocator }
		if at := slices.IndexFunc(out, same); at >= 0 {
			addRow(&out[at], &row)
			continue
		}
		out = append(out, row)
	}
	return out
}

// addRow adds another allocator of the same kind and device.
func addRow(sum, row *figures.TorchMemory) {
	add := func(x *figures.Bytes, y figures.Bytes) { *x = figures.Bytes(figures.Add(uint64(*x), uint64(y))) }
	add(&sum.Reserved, row.Reserved)
	add(&sum.Allocated, row.Allocated)
	add(&sum.Requested, row.Requested)
	add(&sum.Pending, row.Pending)
	add(&sum.InactiveSplit, row.InactiveSplit)
	add(&sum.Free, row.Free)
	sum.Largest = max(sum.Largest, row.Largest)
}

// LargestFree is the largest free block of a device; 0: none is free.
func (d *DeviceState) LargestFree() uint64 {
	largest := d.LargestInactiveSplit
	for i := range d.Segments {
		if s := &d.Segments[i]; s.FreeSegmentCount > 0 {
			largest = max(largest, s.Free)
		}
	}
	return largest
}

// counted is the memory of a device by the allocator's own totals, where parts of its map changed: what is neither in use nor in
// a segment that is free as a whole is an inactive split.
func (d *DeviceState) counted() Memory {
	m := d.Memory
	if d.Changing != nil {
		m.Reserved, m.Allocated, m.Requested, m.Pending = d.Counted.Reserved, d.Counted.Allocated, event.Unknown, d.Active-d.Counted.Allocated
		m.InactiveSplit = m.Reserved - d.Active - m.Free
	}
	return m
}
