// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/internal/sorts"
)

// InactiveSplits is the free blocks of segments that are in use, as far as one request could be served from any of them: the
// allocator hands a block only to a request of its pool and stream. Sizes are bytes.
type InactiveSplits struct {
	Pool    inspect.Pool
	Stream  uint64 // raw handle; 0: the default stream
	Count   uint64
	Bytes   uint64
	Largest uint64
	Classes []SizeClass // by size, those without any left out
}

// SizeClass is the inactive splits of a range of sizes, in bytes.
type SizeClass struct {
	From    uint64 // the smallest size of the class
	Below   uint64 // the smallest size of the next
	Count   uint64
	Bytes   uint64
	Largest uint64
}

// Classes are a factor of four apart, from the allocator's smallest block on (kMinBlockSize of CUDACachingAllocator.cpp).
const (
	smallestBlock = 512
	classFactor   = 4
	maxClass      = 1 << 61 // times the factor does not overflow: no device has as much
)

// InactiveByPool lists the inactive splits by pool and stream: pools in the order of Pools, streams by handle.
func (d *DeviceState) InactiveByPool() []InactiveSplits {
	type key struct {
		pool   inspect.Pool
		stream uint64
	}
	found := map[key]*InactiveSplits{}
	for i := range d.Segments {
		s := &d.Segments[i]
		if s.InactiveSplitCount == 0 {
			continue
		}
		for _, b := range s.blocks(vacant) {
			k := key{s.Pool, b.Stream}
			if found[k] == nil {
				found[k] = &InactiveSplits{Pool: s.Pool, Stream: b.Stream}
			}
			found[k].add(b.Size)
		}
	}
	var out []InactiveSplits
	for _, h := range found {
		sorts.Func(h.Classes, func(x, y SizeClass) int { return cmp.Compare(x.From, y.From) })
		out = append(out, *h)
	}
	sorts.Func(out, func(x, y InactiveSplits) int {
		return cmp.Or(comparePools(x.Pool, y.Pool), cmp.Compare(x.Stream, y.Stream))
	})
	return out
}

func (h *InactiveSplits) add(size uint64) {
	h.Count, h.Bytes, h.Largest = h.Count+1, h.Bytes+size, max(h.Largest, size)
	class := SizeClass{Below: smallestBlock}
	for size >= class.Below && class.Below < maxClass {
		class.From, class.Below = class.Below, class.Below*classFactor
	}
	h.addTo(class, size)
}

func (h *InactiveSplits) addTo(class SizeClass, size uint64) {
	i := slices.IndexFunc(h.Classes, func(c SizeClass) bool { return c.From == class.From })
	if i < 0 {
		i = len(h.Classes)
		h.Classes = append(h.Classes, class)
	}
	c := &h.Classes[i]
	c.Count, c.Bytes, c.Largest = c.Count+1, c.Bytes+size, max(c.Largest, size)
}
