// SPDX-License-Identifier: Apache-2.0

package darwin

import "slices"

// Metal's objects have no addresses of the GPU that can be asked for everywhere, and a heap none at all. So each gets a range of
// addresses of its own, that no other ever has, and what is placed in a heap gets a part of the heap's: then a block lies in its segment
// as it does elsewhere.
const (
	firstAddress = 1 << 44
	pageBytes    = 16 << 10 // of a Mac with Apple's processor
)

// part is a part of a heap that is in use.
type part struct{ offset, size uint64 }

// place is a range of addresses.
type place struct {
	base, size uint64
	parts      []part // by offset
}

// addresses hands out ranges.
type addresses struct{ next uint64 }

func (a *addresses) take(size uint64) *place {
	if a.next == 0 {
		a.next = firstAddress
	}
	p := &place{base: a.next, size: size}
	a.next += max(pageBytes, (size+pageBytes-1)&^(pageBytes-1))
	return p
}

// put finds room for so many bytes, at an offset if that is free. ok is false when there is none.
func (p *place) put(offset, size uint64) (addr uint64, ok bool) {
	if at, fits := p.fits(offset, size); fits {
		p.parts = slices.Insert(p.parts, at, part{offset, size})
		return p.base + offset, true
	}
	from := uint64(0)
	for i := range len(p.parts) + 1 {
		if at, fits := p.fits(from, size); fits {
			p.parts = slices.Insert(p.parts, at, part{from, size})
			return p.base + from, true
		}
		if i < len(p.parts) {
			from = p.parts[i].offset + p.parts[i].size
		}
	}
	return 0, false
}

// fits reports whether a range is free, and where in parts it belongs.
func (p *place) fits(offset, size uint64) (at int, ok bool) {
	if size > p.size || offset > p.size-size {
		return 0, false
	}
	at, found := slices.BinarySearchFunc(p.parts, offset, func(x part, offset uint64) int {
		switch {
		case x.offset < offset:
			return -1
		case x.offset > offset:
			return 1
		}
		return 0
	})
	if found || at > 0 && p.parts[at-1].offset+p.parts[at-1].size > offset || at < len(p.parts) && offset+size > p.parts[at].offset {
		return 0, false
	}
	return at, true
}

// remove returns the address of what put placed, and frees it.
func (p *place) remove(addr uint64) {
	p.parts = slices.DeleteFunc(p.parts, func(x part) bool { return p.base+x.offset == addr })
}
