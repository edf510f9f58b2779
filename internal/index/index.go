// SPDX-License-Identifier: Apache-2.0

// Package index numbers keys in the order in which they come.
package index

// recentKeys is how many keys are found without hashing all of them: a power of two.
const (
	recentBits = 10
	recentKeys = 1 << recentBits
)

// Index numbers keys from 0 on. A replay asks for the same few hundred keys millions of times, and to hash one with texts in it costs
// several times as much as to compare it with the one that had the same hint before. The zero value is empty.
type Index[K comparable] struct {
	numbers map[K]uint32
	recent  []recent[K]
}

// recent is the last key with a hint. The number is one more, so that 0 is none.
type recent[K comparable] struct {
	key  K
	next uint32
}

// Find is the number of a key; ok is false when it has none. Keys whose hints differ are found sooner; any hint is right.
func (x *Index[K]) Find(hint uint64, key *K) (number uint32, ok bool) {
	if x.recent == nil {
		return 0, false
	}
	at := &x.recent[hint*0x9e3779b97f4a7c15>>(64-recentBits)]
	if at.next != 0 && at.key == *key {
		return at.next - 1, true
	}
	if number, ok = x.numbers[*key]; ok {
		*at = recent[K]{*key, number + 1}
	}
	return number, ok
}

// Number is a key's number, and whether it is new. hint is as for Find.
func (x *Index[K]) Number(hint uint64, key *K) (number uint32, fresh bool) {
	if number, ok := x.Find(hint, key); ok {
		return number, false
	}
	if x.recent == nil {
		x.numbers, x.recent = map[K]uint32{}, make([]recent[K], recentKeys)
	}
	number = uint32(len(x.numbers))
	x.numbers[*key] = number
	return number, true
}
