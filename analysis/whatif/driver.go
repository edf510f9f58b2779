// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"slices"
)

// driver hands out the memory of a device. Where segments are in the address space decides which of two free blocks of one size is taken:
// segments are where the recording had those of their size, in its order; beyond that, addresses go on in the direction that it shows.
type driver struct {
	total   uint64 // bytes; 0: without an end
	outside uint64 // what others use now
	used    uint64
	up      bool // new segments come behind the last, not before
	edge    uint64
	gaps    []gap // that were given back; by address

	recorded map[uint64][]uint64 // addresses that are not used yet, by size
	placed   map[uint64]uint64   // segments at recorded addresses: sizes
}

type gap struct{ addr, size uint64 }

// firstEdge is where addresses begin where none are recorded: far from both ends.
const firstEdge = 1 << 50

// newDriver makes a driver with the segments of a recording, in order.
func newDriver(total uint64, up bool, segments []gap) driver {
	d := driver{total: total, up: up, edge: firstEdge, recorded: map[uint64][]uint64{}, placed: map[uint64]uint64{}}
	for i, g := range segments {
		switch {
		case i == 0 && up:
			d.edge = g.addr + g.size
		case i == 0:
			d.edge = g.addr
		case up:
			d.edge = max(d.edge, g.addr+g.size)
		default:
			d.edge = min(d.edge, g.addr)
		}
		d.recorded[g.size] = append(d.recorded[g.size], g.addr)
	}
	return d
}

// place returns the next recorded address of a size, if nothing is there.
func (d *driver) place(n uint64) (addr uint64, ok bool) {
	next := d.recorded[n]
	if len(next) == 0 {
		return 0, false
	}
	addr = next[0]
	for at, size := range d.placed {
		if at < addr+n && addr < at+size {
			return 0, false
		}
	}
	d.recorded[n], d.placed[addr] = next[1:], n
	return addr, true
}

// charge takes memory; false: there is not so much.
func (d *driver) charge(n uint64) bool {
	if d.total > 0 && d.used+d.outside+n > d.total {
		return false
	}
	d.used += n
	return true
}

// reserve returns addresses: those that were given back and are nearest to the first, or new ones.
func (d *driver) reserve(n uint64) uint64 {
	if addr, ok := d.place(n); ok {
		return addr
	}
	at := -1
	for i := range d.gaps {
		if d.gaps[i].size >= n {
			at = i
			if d.up {
				break
			}
		}
	}
	switch {
	case at < 0 && d.up:
		d.edge += n
		return d.edge - n
	case at < 0:
		d.edge -= n
		return d.edge
	}
	g := &d.gaps[at]
	g.size -= n
	out := g.addr
	if d.up {
		g.addr += n
	} else {
		out += g.size
	}
	if g.size == 0 {
		d.gaps = slices.Delete(d.gaps, at, at+1)
	}
	return out
}

// release takes addresses back, next to those that are free already.
func (d *driver) release(addr, size uint64) {
	if _, ok := d.placed[addr]; ok {
		delete(d.placed, addr)
		return
	}
	i, _ := slices.BinarySearchFunc(d.gaps, addr, func(g gap, a uint64) int { return cmp.Compare(g.addr, a) })
	d.gaps = slices.Insert(d.gaps, i, gap{addr, size})
	if i+1 < len(d.gaps) && addr+size == d.gaps[i+1].addr {
		d.gaps[i].size += d.gaps[i+1].size
		d.gaps = slices.Delete(d.gaps, i+1, i+2)
	}
	if i > 0 && d.gaps[i-1].addr+d.gaps[i-1].size == addr {
		d.gaps[i-1].size += d.gaps[i].size
		d.gaps = slices.Delete(d.gaps, i, i+1)
	}
}
