// SPDX-License-Identifier: Apache-2.0

package phases

// tally counts by keys of which there are few, at each event of a recording: a search through a handful is a third of the price of a
// map. The zero value has counted nothing.
type tally[K comparable] []counted[K]

// counted is how often a key came.
type counted[K comparable] struct {
	key K
	n   uint64
}

// add counts a key n times more.
func (t *tally[K]) add(key K, n uint64) {
	for i := range *t {
		if (*t)[i].key == key {
			(*t)[i].n += n
			return
		}
	}
	*t = append(*t, counted[K]{key, n})
}
