// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/gputrace/gputrace/process"
)

// Limits of what is believed of a target.
const (
	maxBlocks = 1 << 21 // blocks of a device, elements of a container
	maxSlots  = 1 << 24 // slots of a hash table
	minUser   = 0x1000  // lowest address that can be a pointer
	maxUser   = 1 << 57 // five-level paging
)

var errShape = errors.New("not a container")

func pointer(a uint64) bool { return a >= minUser && a < maxUser && a%8 == 0 }

// words reads n little-endian words.
func words(m process.Memory, addr uint64, n int) ([]uint64, error) {
	b := make([]byte, 8*n)
	if _, err := m.ReadAt(b, addr); err != nil {
		return nil, err
	}
	return wordsOf(b), nil
}

func wordsOf(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

// A std::set of libstdc++ (bits/stl_tree.h) is a word for the comparison, a header node without a value, and a count:
//
//	+0x00 comparison   +0x08 color   +0x10 root   +0x18 leftmost   +0x20 rightmost   +0x28 count
//
// A node is {color, parent, left, right, value}; the root's parent is the header. A color is red (0) or black (1), in 4
// bytes; the header's is red.
const (
	setSize   = 0x30
	setHeader = 0x08
	nodeWords = 5
)

// isSet reports whether words are a std::set at an address.
func isSet(m process.Memory, addr uint64, w []uint64) bool {
	header := addr + setHeader
	color, root, left, right, count := uint32(w[1]), w[2], w[3], w[4], w[5]
	if color != 0 || count > maxBlocks {
		return false
	}
	if count == 0 {
		return root == 0 && left == header && right == header
	}
	if !pointer(root) || !pointer(left) || !pointer(right) {
		return false
	}
	node, err := words(m, root, 2)
	return err == nil && node[1] == header
}

// link is a node of a tree and the one that points to it.
type link struct{ node, parent uint64 }

// sortLevel leaves out the empty ones of a level's nodes and brings the others in the order of their addresses, so that
// they can be copied together.
func sortLevel(m process.Memory, level []link) []link {
	level = slices.DeleteFunc(level, func(l link) bool { return l.node == 0 })
	slices.SortFunc(level, func(x, y link) int { return cmp.Compare(x.node, y.node) })
	addrs := make([]uint64, len(level))
	for i, l := range level {
		addrs[i] = l.node
	}
	prefetch(m, addrs, 8*nodeWords)
	return level
}

// setValues lists the elements of the std::set at an address. When the nodes are not a tree of as many elements as the set
// says, there is an error beside those that were found: as many as are believed at most.
func setValues(m process.Memory, addr uint64) (values []uint64, err error) {
	w, err := words(m, addr, setSize/8)
	if err != nil {
		return nil, err
	}
	if !isSet(m, addr, w) {
		return nil, fmt.Errorf("set at %#x: %w", addr, errShape)
	}
	count := w[5]
	var node [8 * nodeWords]byte
	for level := []link{{w[2], addr + setHeader}}; len(level) > 0 && len(values) < maxBlocks; {
		level = sortLevel(m, level)
		var next []link
		for _, l := range level {
			b, nodeErr := peek(m, l.node, node[:])
			if nodeErr == nil && word(b, 1) != l.parent {
				nodeErr = fmt.Errorf("set at %#x: node %#x: %w", addr, l.node, errShape)
			}
			if nodeErr != nil {
				err = cmp.Or(err, nodeErr)
				continue
			}
			values = append(values, word(b, 4))
			next = append(next, link{word(b, 2), l.node}, link{word(b, 3), l.node})
		}
		level = next
	}
	if err == nil && uint64(len(values)) != count {
		err = fmt.Errorf("set at %#x: %d elements, want %d: %w", addr, len(values), count, errShape)
	}
	return values, err
}

// A ska::flat_hash_map or flat_hash_set (c10/util/flat_hash_map.h, sherwood_v3_table) is
//
//	+0x00 entries   +0x08 slots - 1   +0x10 shift, int8   +0x11 max lookups, int8   +0x14 load factor, float   +0x18 count
//
// An entry is an int8, the distance from its place, below 0 when it is empty, and behind it, aligned to 8, the value. There
// are slots + max lookups entries; the last one's distance is 0, it ends an iteration.
const (
	tableSize  = 0x20
	loadFactor = 0x3f000000 // 0.5f, set by the constructor and never changed
	minLookups = 4

	entriesAtOnce = 4096 // that are copied
)

// table is the head of a flat hash table.
type table struct {
	at      uint64 // its own address
	entries uint64
	slots   uint64
	lookups uint64
	count   uint64
}

// newTable recognises the head of a table in its words, which lie at an address.
func newTable(at uint64, w []uint64) (t table, ok bool) {
	t = table{at: at, entries: w[0], slots: w[1] + 1, lookups: uint64(int8(w[2] >> 8)), count: w[3]}
	if w[2]>>32 != loadFactor || !pointer(t.entries) || t.slots == 0 || t.slots > maxSlots || t.count > t.slots {
		return table{}, false
	}
	if t.slots == 1 { // the shared table of all empty ones
		return t, t.count == 0
	}
	log := uint64(bits.TrailingZeros64(t.slots))
	return t, t.slots == 1<<log && uint64(uint8(w[2])) == 64-log && t.lookups == max(minLookups, log)
}

// values copies the values of a table whose entries have a size of stride bytes. When the entries do not fit the head, as
// they do not for a wrong stride, there is an error beside what was found.
func (t *table) values(m process.Memory, stride uint64) (values [][]byte, err error) {
	if t.count == 0 {
		return nil, nil
	}
	last := t.slots + t.lookups - 1
	fits := true
	for first := uint64(0); first <= last && len(values) < maxBlocks; first += entriesAtOnce {
		b := make([]byte, stride*min(entriesAtOnce, last+1-first))
		if _, err := m.ReadAt(b, t.entries+stride*first); err != nil {
			return values, err
		}
		for i := uint64(0); i < uint64(len(b))/stride && first+i < last; i++ {
			if entry := b[i*stride : (i+1)*stride]; int8(entry[0]) >= 0 {
				values = append(values, entry[8:])
			}
		}
		fits = fits && (first+entriesAtOnce <= last || b[uint64(len(b))-stride] == 0)
	}
	if !fits || uint64(len(values)) != t.count {
		return values, fmt.Errorf("table at %#x: %d entries of %d bytes, want %d: %w", t.entries, len(values), stride, t.count, errShape)
	}
	return values, nil
}
