//go:build linux

package analysis

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
)

// Block is one tile of a segment, as the allocator knows it.
type Block = inspect.Block

// Books is what the caching allocator's own map of memory adds up to.
type Books struct {
	Devices []DeviceBooks // by their number; also those without memory
}

// DeviceBooks is the figures of one device.
type DeviceBooks struct {
	Memory
	// Counted is the allocator's own totals, which it keeps apart from its map. They are equal to Allocated and Reserved
	// in a map that balances.
	Counted  inspect.DeviceTotals
	Time     uint64         // when it was read, CLOCK_BOOTTIME, nanoseconds
	Pools    []PoolBooks    // the common ones first, then by id; large before small
	Segments []SegmentBooks // by address
}

// Unexplained is the bytes reserved by the allocator's own count that are in none of the four parts, less those that are
// in too many. It is 0 in a map that balances.
func (d *DeviceBooks) Unexplained() int64 {
	return int64(d.Counted.Reserved - d.Allocated - d.Pending - d.Holes - d.Free)
}

// Miscounted is the bytes allocated by the allocator's own count, less those of the blocks. It is 0 in a map that balances.
func (d *DeviceBooks) Miscounted() int64 { return int64(d.Counted.Allocated - d.Allocated) }

// PoolBooks is the figures of one pool of one device.
type PoolBooks struct {
	Memory
	Pool inspect.Pool
}

// SegmentBooks is the figures of one segment.
type SegmentBooks struct {
	Memory
	*inspect.Segment // shared with the map
}

// FreeBytes is the bytes of the segment that no block holds, in holes or as a whole.
func (s *SegmentBooks) FreeBytes() uint64 { return s.Holes + s.Free }

// Gaps lists the free blocks, largest first.
func (s *SegmentBooks) Gaps() []Block {
	out := s.blocks(false)
	slices.SortStableFunc(out, func(x, y Block) int { return cmp.Compare(y.Size, x.Size) })
	return out
}

// Pins lists the blocks that keep the segment from being returned to the driver, by address.
func (s *SegmentBooks) Pins() []Block {
	return s.blocks(true)
}

func (s *SegmentBooks) blocks(held bool) []Block {
	var out []Block
	for i := range s.Blocks {
		if Held(&s.Blocks[i]) == held {
			out = append(out, s.Blocks[i])
		}
	}
	return out
}

// Held reports whether a block is not free: the program holds it, or another stream's work does.
func Held(b *Block) bool { return b.State != inspect.StateFree }

// Pending reports whether a block was given back and waits for another stream's work.
func Pending(b *Block) bool { return b.State == inspect.StatePending }

// NewBooks adds up a map. The map must not change afterwards: it is shared.
func NewBooks(m *inspect.Map) *Books {
	out := &Books{Devices: make([]DeviceBooks, len(m.Devices))}
	for i := range m.Devices {
		out.Devices[i] = newDeviceBooks(&m.Devices[i])
	}
	return out
}

func newDeviceBooks(m *inspect.DeviceMap) DeviceBooks {
	d := DeviceBooks{Counted: m.DeviceTotals, Time: m.Time, Segments: make([]SegmentBooks, len(m.Segments))}
	pools := map[inspect.Pool]*Memory{}
	for i := range m.Segments {
		s := &m.Segments[i]
		d.Segments[i] = SegmentBooks{segmentMemory(s), s}
		d.add(&d.Segments[i].Memory)
		if pools[s.Pool] == nil {
			pools[s.Pool] = &Memory{}
		}
		pools[s.Pool].add(&d.Segments[i].Memory)
	}
	for p, memory := range pools {
		d.Pools = append(d.Pools, PoolBooks{*memory, p})
	}
	slices.SortFunc(d.Pools, func(x, y PoolBooks) int { return comparePools(x.Pool, y.Pool) })
	return d
}

func segmentMemory(s *inspect.Segment) Memory {
	m := Memory{Reserved: s.Size, SegmentCount: 1}
	for _, b := range s.Blocks {
		switch b.State {
		case inspect.StateAllocated:
			m.Allocated, m.Requested, m.AllocatedCount = m.Allocated+b.Size, event.Add(m.Requested, b.Requested), m.AllocatedCount+1
		case inspect.StatePending:
			m.Pending, m.PendingCount = m.Pending+b.Size, m.PendingCount+1
		default:
			m.Holes, m.HoleCount, m.LargestHole = m.Holes+b.Size, m.HoleCount+1, max(m.LargestHole, b.Size)
		}
	}
	if m.AllocatedCount+m.PendingCount == 0 {
		m.Free, m.FreeSegmentCount = m.Holes, 1
		m.Holes, m.HoleCount, m.LargestHole = 0, 0, 0
	}
	return m
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

// MostFree gives the n segments with the most bytes that no block holds, and how many with such bytes there are in all.
func (d *DeviceBooks) MostFree(n int) (most []SegmentBooks, all int) {
	for i := range d.Segments {
		if d.Segments[i].FreeBytes() > 0 {
			most = append(most, d.Segments[i])
		}
	}
	slices.SortStableFunc(most, func(x, y SegmentBooks) int { return cmp.Compare(y.FreeBytes(), x.FreeBytes()) })
	return most[:min(n, len(most))], len(most)
}

// Torch is the allocator's memory by device, also of devices without any.
func (b *Books) Torch() []TorchMemory {
	out := make([]TorchMemory, len(b.Devices))
	for i := range b.Devices {
		out[i] = TorchMemory{Device: b.Devices[i].Counted.Device, Memory: b.Devices[i].Memory}
	}
	return out
}
