// SPDX-License-Identifier: Apache-2.0

// Package allocator computes where the memory of a caching allocator is: allocated, pending, inactive or free, by device, pool
// and segment, from the allocator's own map or from a recording, and how large a request could still be served.
package allocator

import "github.com/gputrace/gputrace/event/figures"

// Memory is a sum over segments: each byte of them is in exactly one of Allocated, Pending, InactiveSplit and Free. All sizes are
// bytes.
type Memory struct {
	Reserved      uint64 // segments
	Allocated     uint64 // blocks that the program holds
	Requested     uint64 // of Allocated, what the program asked for; event.Unknown where the allocator does not keep it
	Pending       uint64 // blocks given back that wait for another stream's work
	InactiveSplit uint64 // free blocks of segments that a block which is not free keeps from being returned to the driver
	Free          uint64 // segments that are free as a whole

	LargestInactiveSplit uint64
	SegmentCount         uint64
	FreeSegmentCount     uint64 // of those that are free as a whole
	AllocatedCount       uint64 // of the blocks that the program holds
	PendingCount         uint64
	InactiveSplitCount   uint64
}

// Rounding is the bytes that the allocator added to what was asked for; event.Unknown.
func (m *Memory) Rounding() uint64 { return figures.Sub(m.Allocated, m.Requested) }

func (m *Memory) add(n *Memory) {
	m.Reserved, m.Allocated, m.Requested = m.Reserved+n.Reserved, m.Allocated+n.Allocated, figures.Add(m.Requested, n.Requested)
	m.Pending, m.InactiveSplit, m.Free = m.Pending+n.Pending, m.InactiveSplit+n.InactiveSplit, m.Free+n.Free
	m.LargestInactiveSplit = max(m.LargestInactiveSplit, n.LargestInactiveSplit)
	m.SegmentCount, m.FreeSegmentCount = m.SegmentCount+n.SegmentCount, m.FreeSegmentCount+n.FreeSegmentCount
	m.AllocatedCount, m.PendingCount, m.InactiveSplitCount = m.AllocatedCount+n.AllocatedCount, m.PendingCount+n.PendingCount,
		m.InactiveSplitCount+n.InactiveSplitCount
}
