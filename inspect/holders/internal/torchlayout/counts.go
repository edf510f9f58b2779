// SPDX-License-Identifier: Apache-2.0

package torchlayout

import "github.com/gputrace/gputrace/cpython/pyobject"

// Marks in a tensor, beside its counts, of who keeps whom alive, it or its Python object.
const (
	ownsBit = 1       // of the address of the Python object: the tensor owns it, not the other way round (1.13 to 2.14)
	mutual  = 1 << 63 // of the count: each owns the other while others own the tensor too (2.15)
	strong  = 1<<32 - 1
)

// maxReferences bounds a plausible count: freed memory has others.
const maxReferences = 1 << 24

// alive reports whether the counts of an object of C++ are those of a live object. A live one has a weak count too,
// in the upper half of the word, or in a word behind it where each count has its own, as in older versions. Freed
// memory can still have an object's table, and behind it, for example, how large the piece of memory there is.
func (n *Objects) alive(object uint64) bool {
	word := n.im.Word(object + countAt)
	plausible := func(count uint64) bool { return count > 0 && count < maxReferences }
	return plausible(word&strong) && (plausible(word&^mutual>>32) || plausible(n.im.Word(object+countAt+8)))
}

// ReferenceCount is how many references an object of C++ counts.
func (n *Objects) ReferenceCount(object uint64) int { return int(n.im.Word(object+countAt) & strong) }

// IsNativeRef reports whether references of a kind are of C++: they are counted in the tensor, not in its Python object.
func IsNativeRef(kind pyobject.RefKind) bool {
	switch kind {
	case RefGrad, RefSaved, RefVariable, RefBase, RefStorage, RefInner:
		return true
	}
	return false
}

// References counts references to an object of C++ and to its Python object. The doubtful ones count as far as the object's
// own count needs them.
type References struct{ Native, Python, DoubtfulNative, Doubtful int }

// Add counts a reference.
func (r *References) Add(kind pyobject.RefKind, doubtful bool) {
	native := IsNativeRef(kind)
	switch {
	case native && doubtful:
		r.DoubtfulNative++
	case native:
		r.Native++
	case doubtful:
		r.Doubtful++
	default:
		r.Python++
	}
}

// MissingOfTensor is how many references to a tensor its counts know beside those that were found. object is its Python object
// or 0. ok is false when the counts know fewer, or say nothing.
func (t *Reader) MissingOfTensor(impl, object uint64, found References) (n References, ok bool) {
	return t.missing(impl, t.pythonObject, object, found)
}

// MissingOfStorage is the same of a storage.
func (t *Reader) MissingOfStorage(storage, object uint64, found References) (n References, ok bool) {
	return t.missing(storage, t.storageObject, object, found)
}

// missing counts for an object of C++ that has its Python object in a slot.
func (t *Reader) missing(native, slot, object uint64, found References) (n References, ok bool) {
	head := t.im.Word(native + countAt)
	inC, inPython := int(head&strong)-found.Native, -found.Python
	if object != 0 {
		count, ok := t.heap.ReferenceCount(t.im, object)
		if !ok {
			return n, false
		}
		inPython += int(count)
	}
	switch {
	case object == 0:
	case head&mutual != 0:
		if head&strong > 1 {
			inPython--
		}
		inC--
	case t.im.Word(native+slot)&ownsBit != 0:
		inPython--
	default:
		inC--
	}
	n = References{Native: beyond(inC, found.DoubtfulNative), Python: beyond(inPython, found.Doubtful)}
	return n, inC >= 0 && inPython >= 0
}

// beyond is what remains of a count when doubtful references are taken off as far as it goes.
func beyond(n, doubtful int) int { return max(0, n-doubtful) }
