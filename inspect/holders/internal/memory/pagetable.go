// SPDX-License-Identifier: Apache-2.0

package memory

const (
	// A leaf covers 8 MiB of addresses in 8 KiB, and a branch 16 GiB in 16 KiB: the memory of a process lies in few places.
	leafBits   = 11
	branchBits = 11
	branches   = MaxAddress >> (PageShift + leafBits + branchBits)
	// maxTables bounds the memory of a table, 1 GiB.
	maxTables = 1 << 17
)

// pageTable maps pages to numbers, as processors do.
//
//	 47        34        23        12         0
//	| branch    | leaf    | page    | offset   |
type pageTable struct {
	top   [branches]*[1 << branchBits]*[1 << leafBits]uint32
	count int
}

// get is the number of the page of an address below MaxAddress; 0: it has none.
func (t *pageTable) get(addr uint64) uint32 {
	b := t.top[addr>>(PageShift+leafBits+branchBits)]
	if b == nil {
		return 0
	}
	l := b[addr>>(PageShift+leafBits)&(1<<branchBits-1)]
	if l == nil {
		return 0
	}
	return l[addr>>PageShift&(1<<leafBits-1)]
}

// set sets the number of a page. It is false when the table is too large.
func (t *pageTable) set(addr uint64, n uint32) bool {
	b := &t.top[addr>>(PageShift+leafBits+branchBits)]
	if *b == nil {
		*b = new([1 << branchBits]*[1 << leafBits]uint32)
	}
	l := &(*b)[addr>>(PageShift+leafBits)&(1<<branchBits-1)]
	if *l == nil {
		if t.count >= maxTables {
			return false
		}
		t.count++
		*l = new([1 << leafBits]uint32)
	}
	(*l)[addr>>PageShift&(1<<leafBits-1)] = n
	return true
}
