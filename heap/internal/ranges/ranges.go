// SPDX-License-Identifier: Apache-2.0

// Package ranges has lists of address ranges that are sorted and do not overlap.
package ranges

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/codec"
	"github.com/gputrace/gputrace/heap/internal/division"
)

// Range is the addresses [Start, End) of a device.
type Range struct {
	Start, End uint64
	Device     event.Device
}

// List is sorted by address and has no overlaps. The zero value is empty.
type List []Range

func (r Range) bounds() (uint64, uint64) { return r.Start, r.End }

// Add adds a range, in place of everything that it overlaps.
func (l *List) Add(r Range) {
	l.Cut(r.Start, r.End)
	at, _ := Overlapping(*l, Range.bounds, r.Start, r.End)
	*l = slices.Insert(*l, at, r)
}

// Cut removes [lo, hi) and returns what was removed.
func (l *List) Cut(lo, hi uint64) (out []Range) {
	from, to := Overlapping(*l, Range.bounds, lo, hi)
	if from == to {
		return nil
	}
	var rest []Range
	for _, r := range (*l)[from:to] {
		if r.Start < lo {
			rest = append(rest, Range{r.Start, lo, r.Device})
		}
		if r.End > hi {
			rest = append(rest, Range{hi, r.End, r.Device})
		}
		out = append(out, Range{max(r.Start, lo), min(r.End, hi), r.Device})
	}
	*l = slices.Replace(*l, from, to, rest...)
	return out
}

// Find returns the range that contains an address.
func (l List) Find(addr uint64) (Range, bool) {
	from, to := Overlapping(l, Range.bounds, addr, addr+1)
	if from == to {
		return Range{}, false
	}
	return l[from], true
}

// Bytes returns the bytes of the ranges of one device.
func (l List) Bytes(device event.Device) (sum uint64) {
	for i := range l {
		if l[i].Device == device {
			sum += l[i].End - l[i].Start
		}
	}
	return sum
}

// Replace replaces the ranges of a device by segments; nil: they were not read, and the list stays.
func (l *List) Replace(device event.Device, by []event.ObservedSegment) {
	if by == nil {
		return
	}
	*l = slices.DeleteFunc(*l, func(r Range) bool { return r.Device == device })
	for _, s := range by {
		if s.Addr < s.Addr+s.Size {
			l.Add(Range{s.Addr, s.Addr + s.Size, device})
		}
	}
}

// Segments returns the ranges of a device as segments.
func (l List) Segments(device event.Device, mapped bool) (out []division.Segment) {
	for _, r := range l {
		if r.Device == device {
			out = append(out, division.Segment{Addr: r.Start, Size: r.End - r.Start, Mapped: mapped})
		}
	}
	return out
}

// Code writes a list, or reads one into an empty list.
func (l *List) Code(c *codec.Codec) {
	list := []Range(*l)
	codec.List(c, &list, func(r *Range) {
		c.Numbers(&r.Start, &r.End)
		c.Fixed(&r.Device)
	})
	if !c.Load {
		return
	}
	for _, r := range list {
		if r.Start >= r.End {
			c.Fail("a range ends at %#x and begins at %#x", r.End, r.Start)
			return
		}
		l.Add(r)
	}
}

// Compare orders addresses.
func Compare(x, y uint64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// Overlapping returns the indexes from and to of the elements that overlap [lo, hi), in a list that is sorted by
// address and has no overlaps. If none does, both are the index at which such an element would be inserted.
func Overlapping[T any](list []T, bounds func(T) (uint64, uint64), lo, hi uint64) (from, to int) {
	to, _ = slices.BinarySearchFunc(list, hi, func(x T, addr uint64) int {
		start, _ := bounds(x)
		return Compare(start, addr)
	})
	for from = to; from > 0 && lo < hi; from-- {
		if _, end := bounds(list[from-1]); end <= lo {
			break
		}
	}
	return from, to
}
