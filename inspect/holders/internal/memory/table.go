// SPDX-License-Identifier: Apache-2.0

package memory

// Table maps addresses to small numbers, without pointers that Go's collector would follow: open addressing, linear probing.
// Address 0 cannot be a key.
type Table struct {
	keys   []uint64
	values []uint32
	count  int
}

const minTable = 1 << 10

// NewTable makes a table without keys.
func NewTable() *Table {
	return &Table{keys: make([]uint64, minTable), values: make([]uint32, minTable)}
}

// slot mixes an address: the low bits of addresses of objects are alike (Fibonacci hashing).
func (t *Table) slot(key uint64) int {
	return int((key*0x9e3779b97f4a7c15)>>20) & (len(t.keys) - 1)
}

// Get is the value of a key; ok is false when it has none.
func (t *Table) Get(key uint64) (uint32, bool) {
	for i := t.slot(key); ; i = (i + 1) & (len(t.keys) - 1) {
		switch t.keys[i] {
		case 0: // also for the key 0, which is never set
			return 0, false
		case key:
			return t.values[i], true
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
	if 2*t.count >= len(t.keys) {
		t.grow()
	}
	for i := t.slot(key); ; i = (i + 1) & (len(t.keys) - 1) {
		if t.keys[i] == 0 {
			t.keys[i] = key
			t.count++
		}
		if t.keys[i] == key {
			t.values[i] = value
			return
		}
	}
}

func (t *Table) grow() {
	keys, values := t.keys, t.values
	t.keys, t.values, t.count = make([]uint64, 2*len(keys)), make([]uint32, 2*len(keys)), 0
	for i, k := range keys {
		if k != 0 {
			t.Set(k, values[i])
		}
	}
}
