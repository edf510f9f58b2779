// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"encoding/binary"
	"iter"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// gnuHash is the table by which the loader finds a name in .dynsym (DT_GNU_HASH, as bfd/elflink.c of binutils writes and
// dl-lookup.c of glibc reads it): a bucket for each remainder of the name's hash, which begins a chain of symbols.
type gnuHash struct {
	first   uint32 // number of the first symbol that is in the table
	buckets []byte // a uint32 for each: number of a chain's first symbol, 0: none
	chains  []byte // a uint32 for each symbol from first on: its hash, with the lowest bit set at a chain's end
}

// readGNUHash reads the header. Of a table that makes no sense nothing is left, and then every symbol is looked at.
func readGNUHash(b []byte) gnuHash {
	r := elfimage.Reader{B: b}
	buckets, first, bloom := uint64(r.U32()), r.U32(), uint64(r.U32())
	r.U32() // bloom shift
	r.Take(8 * bloom)
	h := gnuHash{first: first, buckets: r.Take(4 * buckets)}
	if r.Bad || buckets == 0 {
		return gnuHash{}
	}
	h.chains = r.B[r.Off:]
	return h
}

// hashGNU is the hash of a name (dl_new_hash of glibc).
func hashGNU(name string) uint32 {
	h := uint32(5381)
	for _, c := range []byte(name) {
		h = h*33 + uint32(c)
	}
	return h
}

// candidates are the numbers of the symbols that can have a name: those of its hash where there is a table, else all.
func (t *symbolTable) candidates(name string) iter.Seq[int] {
	if t.hash.buckets == nil {
		return func(yield func(int) bool) {
			for i := range t.count() {
				if !yield(i) {
					return
				}
			}
		}
	}
	return func(yield func(int) bool) {
		h, hash := &t.hash, hashGNU(name)
		bucket := hash % uint32(len(h.buckets)/4)
		first := binary.LittleEndian.Uint32(h.buckets[4*bucket:])
		if first < h.first {
			return
		}
		for i := int(first); i < t.count(); i++ {
			at := 4 * (i - int(h.first))
			if at+4 > len(h.chains) {
				return
			}
			have := binary.LittleEndian.Uint32(h.chains[at:])
			if have|1 == hash|1 && !yield(i) || have&1 != 0 {
				return
			}
		}
	}
}
