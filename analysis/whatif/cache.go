// SPDX-License-Identifier: Apache-2.0

package whatif

import "math"

// cache is the caching allocator of one device. Its rules are those of c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.1 to 2.15,
// without private pools; functions are named there where a rule is from one.
type cache struct {
	Settings
	driver
	smallPool, largePool *pool
	rules                Rules
	segments             uint64 // that were obtained
	retries              int    // how often all cached segments were returned for a request
}

func newCache(s *Settings, rules Rules, up bool, segments []gap) *cache {
	return &cache{Settings: *s, rules: rules, driver: newDriver(s.Device, up, segments), smallPool: newPool(true), largePool: newPool(false)}
}

func (a *cache) poolOf(size uint64) *pool {
	if size <= smallSize {
		return a.smallPool
	}
	return a.largePool
}

// collects reports whether garbage is collected.
func (a *cache) collects() bool { return a.Fraction > 0 && a.GC > 0 }

// allowed is what the fraction leaves; without one, all.
func (a *cache) allowed() uint64 {
	if a.Fraction == 0 || a.total == 0 {
		return math.MaxUint64
	}
	return uint64(a.Fraction * float64(a.total))
}

// malloc serves a request; nil: it fails.
func (a *cache) malloc(requested, stream uint64) *block {
	size := a.round(requested)
	p := a.poolOf(size)
	b := a.find(p, size, stream)
	if b == nil {
		if a.collects() {
			a.collect()
		}
		b = a.grow(p, size, stream)
	}
	if b == nil && a.releaseOversize(p, size, stream) {
		b = a.grow(p, size, stream)
	}
	if b == nil {
		a.retries++
		a.releaseAll()
		b = a.grow(p, size, stream)
	}
	if b == nil {
		return nil
	}
	if a.splits(b, size) {
		p.add(b.cut(size))
	}
	b.held = true
	return b
}

// splits reports whether what is left over of a block becomes one of its own (should_split).
func (a *cache) splits(b *block, size uint64) bool {
	rest := b.size - size
	if b.pool.small || a.Expandable {
		return rest >= minBlock
	}
	return (a.MaxSplit == 0 || size < a.MaxSplit) && rest > smallSize
}

// find takes the free block that fits best (get_free_block).
func (a *cache) find(p *pool, size, stream uint64) *block {
	if a.collects() {
		p.searches++
	}
	list, at := p.atLeast(stream, size)
	if at == len(list) {
		return nil
	}
	if list[at].space != nil {
		if at = a.findExpandable(list, at); at == len(list) {
			return nil
		}
	}
	b := list[at]
	if a.MaxSplit > 0 && (size < a.MaxSplit && b.size >= a.MaxSplit || size >= a.MaxSplit && b.size >= size+largeBuffer) {
		return nil
	}
	p.remove(b)
	return b
}

// findExpandable goes on from a block of an expandable segment: to the one that can grow least; where segments are not expandable any
// more, to one that is not.
func (a *cache) findExpandable(list []*block, at int) int {
	if !a.Expandable {
		for at < len(list) && list[at].space != nil {
			at++
		}
		return at
	}
	for list[at].space != nil && at+1 < len(list) && list[at+1].reach() < list[at].reach() {
		at++
	}
	return at
}

// grow obtains memory for a request from the driver (alloc_block).
func (a *cache) grow(p *pool, size, stream uint64) *block {
	n := segment(size)
	switch {
	case a.Fraction > 0 && a.used+n > a.allowed():
		return nil
	case a.Expandable:
		return a.expand(p, size, stream)
	case !a.charge(n):
		return nil
	}
	return &block{addr: a.reserve(n), size: n, stream: stream, pool: p, order: a.nextOrder()}
}

// nextOrder is the order of a new segment.
func (a *cache) nextOrder() uint64 {
	if !a.rules.OldestFirst {
		return 0
	}
	a.segments++
	return a.segments
}

// free frees a block (free_block).
func (a *cache) free(b *block) {
	b.held = false
	b.join(b.prev)
	b.join(b.next)
	b.pool.add(b)
}

// drop returns a segment that is free as a whole to the driver.
func (a *cache) drop(b *block) {
	b.pool.remove(b)
	a.used -= b.size
	a.release(b.addr, b.size)
}

// releaseOversize returns segments that may not be split, as many as the request needs (release_available_cached_blocks).
func (a *cache) releaseOversize(p *pool, size, stream uint64) bool {
	if a.MaxSplit == 0 {
		return false
	}
	need := max(size, a.MaxSplit)
	list, at := p.atLeast(stream, need)
	if at < len(list) {
		if list[at].space == nil {
			a.drop(list[at])
		}
		return true
	}
	released := uint64(0)
	for at--; at >= 0 && released < need && list[at].size >= a.MaxSplit; at-- {
		b := list[at]
		if b.space == nil {
			released += b.size
			a.drop(b)
		}
		list = p.free[stream]
	}
	return released >= need
}

// releaseAll returns all that is cached and not split (release_cached_blocks, empty_cache).
func (a *cache) releaseAll() {
	for _, p := range []*pool{a.largePool, a.smallPool} {
		var mapped []*block
		for _, b := range p.all() {
			switch {
			case b.space != nil:
				mapped = append(mapped, b)
			case b.whole():
				a.drop(b)
			}
		}
		for _, b := range mapped {
			a.unmap(b)
		}
	}
}

// collect returns old segments when more than the threshold is reserved (garbage_collect_cached_blocks).
func (a *cache) collect() {
	threshold := uint64(a.GC * float64(a.allowed()))
	if a.used <= threshold {
		return
	}
	target, reclaimed := a.used-threshold, uint64(0)
	for freed := true; freed && reclaimed < target; {
		freed = false
		age, count := uint64(0), 0
		for _, b := range a.largePool.all() {
			if b.whole() && b.space == nil {
				age, count = age+b.age(), count+1
			}
		}
		if count == 0 {
			return
		}
		limit := float64(age) / float64(count)
		for _, b := range a.largePool.all() {
			if b.whole() && b.space == nil && float64(b.age()) >= limit {
				freed, reclaimed = true, reclaimed+b.size
				a.drop(b)
			}
		}
	}
}
