package analysis

import "github.com/gputrace/gputrace/event"

// Memory is a sum over segments: each byte of them is in exactly one of Allocated, Pending, Holes and Free. All sizes are
// bytes.
type Memory struct {
	Reserved  uint64 // segments
	Allocated uint64 // blocks that the program holds
	Requested uint64 // of Allocated, what the program asked for; event.Unknown where the allocator does not keep it
	Pending   uint64 // blocks given back that wait for another stream's work
	Holes     uint64 // free blocks of segments that a block which is not free keeps from being returned to the driver
	Free      uint64 // segments that are free as a whole

	LargestHole      uint64
	SegmentCount     uint64
	FreeSegmentCount uint64 // of those that are free as a whole
	AllocatedCount   uint64 // of the blocks that the program holds
	PendingCount     uint64
	HoleCount        uint64
}

// Rounding is the bytes that the allocator added to what was asked for; event.Unknown.
func (m *Memory) Rounding() uint64 { return event.Sub(m.Allocated, m.Requested) }

func (m *Memory) add(n *Memory) {
	m.Reserved, m.Allocated, m.Requested = m.Reserved+n.Reserved, m.Allocated+n.Allocated, event.Add(m.Requested, n.Requested)
	m.Pending, m.Holes, m.Free = m.Pending+n.Pending, m.Holes+n.Holes, m.Free+n.Free
	m.LargestHole = max(m.LargestHole, n.LargestHole)
	m.SegmentCount, m.FreeSegmentCount = m.SegmentCount+n.SegmentCount, m.FreeSegmentCount+n.FreeSegmentCount
	m.AllocatedCount, m.PendingCount, m.HoleCount = m.AllocatedCount+n.AllocatedCount, m.PendingCount+n.PendingCount, m.HoleCount+n.HoleCount
}
