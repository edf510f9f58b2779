// SPDX-License-Identifier: Apache-2.0

// Package reconcile compares the blocks known from events with those read from the allocator state, and plans the
// corrections. It changes nothing itself.
package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

// Live is a block known from events.
type Live struct {
	blocks.Block
	Number uint32 // number in the table of blocks
}

// Input is the data that Blocks compares.
type Input struct {
	From  uint64                // time when the reading began, CLOCK_BOOTTIME nanoseconds
	Seen  []event.ObservedBlock // blocks that were read, in any order
	Live  []Live                // in any order; Blocks sorts it
	Freed map[uint64]struct{}   // addresses of blocks that events freed since From
	Total uint64                // sum that the outcome must add up to, bytes
}

// Plan lists the changes that make the live blocks equal to the allocator's.
type Plan struct {
	Added  []event.ObservedBlock // blocks that no event reported
	Retire []uint32              // numbers of blocks that the allocator does not have
	Refine []Refinement          // blocks whose reading has more fields than their event
	Kept   uint64                // number of blocks on which both agree
	Dirty  uint64                // number of blocks that events changed since From: the events decided
}

// Refinement is a block whose reading has more fields than its event.
type Refinement struct {
	Number uint32
	event.ObservedBlock
}

// join is one call of Blocks.
type join struct {
	*Input
	Plan
	sum, end uint64 // the outcome so far: its bytes, and the end of its last block
}

// Blocks walks both lists by address. An event during the reading, from From on, is newer than the reading and decides:
//
//	reading   live    event since From    then
//	block     -       freed               it was freed (dirty)
//	block     -       none                added: its event was lost, or it is from before
//	-         block   allocated           it is kept (dirty)
//	-         block   none                retired: its free was lost
//	block     block   allocated           the live one is kept (dirty)
//	block     block   none                kept; where they differ, what was read
//
// The outcome is valid only when its blocks do not overlap and add up to the allocator's total, which a reading that
// mixes two moments does not. Otherwise Blocks returns an error with the reason.
func Blocks(in *Input) (*Plan, error) {
	seen, err := sorted(in.Seen)
	if err != nil {
		return nil, err
	}
	j, live := &join{Input: in}, in.Live
	slices.SortFunc(live, func(x, y Live) int { return cmp.Compare(x.Addr, y.Addr) })
	for len(seen)+len(live) > 0 {
		switch {
		case len(live) == 0 || len(seen) > 0 && seen[0].Addr < live[0].Addr:
			err = j.seenOnly(seen[0])
			seen = seen[1:]
		case len(seen) == 0 || live[0].Addr < seen[0].Addr:
			err = j.liveOnly(&live[0])
			live = live[1:]
		default:
			err = j.take(live[0].Addr, j.both(&live[0], seen[0]))
			live, seen = live[1:], seen[1:]
		}
		if err != nil {
			return nil, err
		}
	}
	if j.sum != in.Total {
		return nil, fmt.Errorf("the blocks are %d bytes, the allocator's total is %d", j.sum, in.Total)
	}
	return &j.Plan, nil
}

// sorted returns the blocks that were read, by address and without duplicates.
func sorted(seen []event.ObservedBlock) ([]event.ObservedBlock, error) {
	out := slices.Clone(seen)
	slices.SortFunc(out, func(x, y event.ObservedBlock) int { return cmp.Compare(x.Addr, y.Addr) })
	out = slices.Compact(out)
	for i := range out {
		if b := &out[i]; b.Addr == 0 || b.Addr >= 1<<63 || b.Size == 0 || b.Size >= blocks.MaxBytes || !blocks.PlausibleSize(b.Requested) {
			return nil, fmt.Errorf("no block can be %d bytes at %#x", b.Size, b.Addr)
		}
	}
	return out, nil
}

// take adds a block to the outcome.
func (j *join) take(addr, size uint64) error {
	if addr < j.end {
		return fmt.Errorf("two blocks at %#x", addr)
	}
	j.sum, j.end = j.sum+size, addr+size
	return nil
}

func (j *join) seenOnly(o event.ObservedBlock) error {
	if _, ok := j.Freed[o.Addr]; ok {
		j.Dirty++
		return nil
	}
	j.Added = append(j.Added, o)
	return j.take(o.Addr, o.Size)
}

func (j *join) liveOnly(b *Live) error {
	if b.Time < j.From {
		j.Retire = append(j.Retire, b.Number)
		return nil
	}
	j.Dirty++
	return j.take(b.Addr, b.Size)
}

// both decides between the two blocks at one address, and returns the size of the one that remains.
func (j *join) both(b *Live, o event.ObservedBlock) uint64 {
	switch {
	case b.Time >= j.From:
		j.Dirty++
		return b.Size
	case b.Size != o.Size, o.Requested != event.Unknown && b.Requested != event.Unknown && o.Requested != b.Requested:
		j.Retire = append(j.Retire, b.Number)
		j.Added = append(j.Added, o)
		return o.Size
	case b.Requested == event.Unknown && o.Requested != event.Unknown, b.Stream == event.Unknown:
		j.Refine = append(j.Refine, Refinement{b.Number, o})
	}
	j.Kept++
	return b.Size
}
