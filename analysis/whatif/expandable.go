// SPDX-License-Identifier: Apache-2.0

package whatif

// endless is the address space of an expandable segment on a device without an end.
const endless = 1 << 44

// expand maps memory into an expandable segment until a request fits (try_allocate_expandable_block). nil: there is not so much memory;
// what was mapped stays.
func (a *cache) expand(p *pool, size, stream uint64) *block {
	b := a.expandableAt(p, size, stream)
	if b.unmapped && !a.mapMemory(b, min(b.size, size)) {
		return nil
	}
	for b.size < size {
		next := b.next
		if !a.mapMemory(next, min(size-b.size, next.size)) {
			return nil
		}
		b = next
	}
	p.remove(b)
	return b
}

// expandableAt is the lowest address at which a request has room (find_expandable_block): an unmapped block, or the free one before it. It
// makes a new segment where there is none.
func (a *cache) expandableAt(p *pool, size, stream uint64) *block {
	for _, b := range p.unmapped[stream] {
		if b.prev != nil && !b.prev.held {
			b = b.prev
		}
		room := uint64(0)
		for at := b; at != nil && !at.held && room < size; at = at.next {
			room += at.size
		}
		if room >= size {
			return b
		}
	}
	n := uint64(endless)
	if a.total > 0 {
		n = a.total + a.total/8
	}
	n = up(n, page(p.small))
	b := &block{addr: a.reserve(n), size: n, stream: stream, pool: p, unmapped: true, order: a.nextOrder()}
	b.space = &space{b.addr, n}
	p.add(b)
	return b
}

// mapMemory maps pages from the beginning of an unmapped block on, and joins them with what is free beside them (map_block).
func (a *cache) mapMemory(b *block, n uint64) bool {
	n = up(n, page(b.pool.small))
	if !a.charge(n) {
		return false
	}
	b.pool.remove(b)
	if n < b.size {
		b.pool.add(b.cut(n))
	}
	b.unmapped = false
	b.join(b.prev)
	b.join(b.next)
	b.pool.add(b)
	return true
}

// unmap returns the pages that are free as a whole (unmap_block).
func (a *cache) unmap(b *block) {
	unit := page(b.pool.small)
	from := b.space.base + up(b.addr-b.space.base, unit)
	to := b.space.base + (b.addr+b.size-b.space.base)/unit*unit
	if from >= to {
		return
	}
	p := b.pool
	p.remove(b)
	if from > b.addr {
		head := b
		b = head.cut(from - head.addr)
		p.add(head)
	}
	if to < b.addr+b.size {
		p.add(b.cut(to - b.addr))
	}
	a.used -= to - from
	b.unmapped = true
	b.join(b.prev)
	b.join(b.next)
	if b.whole() {
		a.release(b.addr, b.size)
		return
	}
	p.add(b)
}
