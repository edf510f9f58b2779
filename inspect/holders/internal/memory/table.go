// SPDX-License-Identifier: Apache-2.0

package memory

// Table maps addresses to small numbers, without pointers that Go's collector would follow: open addressing, linear probing.
// Address 0 cannot be a key.
type Table struct {
	entries []entry // at most two thirds are used
	count   int
}

// entry is free when its key is 0. Key and value lie together: what is found costs one miss of the cache.
type entry struct {
	key   uint64
	value uint32
}

const minTable = 1 << 10

// NewTable makes a table without keys.
func NewTable() *Table { return &Table{entries: make([]entry, minTable)} }

// slot mixes an address: the low bits of addresses of objects are alike (Fibonacci hashing).
func (t *Table) slot(key uint64) int {
	return int((key*0x9e3779b97f4a7c15)>>20) & (len(t.entries) - 1)
}

// Get is the value of a key; ok is false when it has none.
func (t *Table) Get(key uint64) (uint32, bool) {
	for i := t.slot(key); ; i = (i + 1) & (len(t.entries) - 1) {
		switch e := &t.entries[i]; e.key {
		case 0: // also for the key 0, which is never set
			return 0, false
		case key:
			return e.value, true
		}
	}
}

// Has reports whether there is a key.
func (t *Table) Has(key uint64) bool {
	_, ok := t.Get(key)
	return ok
}

// Len is how many keys there are.
func (t *Table) Len() int { return t.count }

// Set sets the value of a key. The key 0 is passed over.
func (t *Table) Set(key uint64, value uint32) {
	if key == 0 {
		return
	}
	if 3*t.count >= 2*len(t.entries) {
		t.grow()
	}
	for i := t.slot(key); ; i = (i + 1) & (len(t.entries) - 1) {
		e := &t.entries[i]
		if e.key == 0 {
			e.key = key
			t.count++
		}
		if e.key == key {
			e.value = value
			return
		}
	}
}

func (t *Table) grow() {
	old := t.entries
	t.entries, t.count = make([]entry, 2*len(old)), 0
	for _, e := range old {
		if e.key != 0 {
			t.Set(e.key, e.value)
		}
	}
}
