// SPDX-License-Identifier: Apache-2.0

package torchlayout

import "strings"

// On macOS nothing that can be read says how large an object of C++ is: no size is passed where it is deleted, and malloc keeps none beside
// it. So malloc itself is asked, once for all objects whose size is of use. It rounds a request up: the fields are
// read of which it is certain that they were asked for, and none behind them, where old references may lie. All
// objects of a class have one size; what most of those that were asked for have is taken. So one that was freed
// meanwhile, or is no object any more, does no harm.

// Malloc says what malloc gave, in a process that can be asked.
type Malloc interface {
	// Sizes answers for places, each an object's address and where its memory would begin: the word at the first, and how many bytes were
	// asked for at the second, at least; 0: no memory begins there, or it is not known.
	Sizes(places [][2]uint64) (answers [][2]uint64, err error)
}

const (
	// emplaced is how far std::make_shared puts an object into its memory, behind the count (libc++, __shared_ptr_emplace), and quantum what
	// malloc aligns to: an object's own address tells which of the two it is.
	emplaced = 24
	quantum  = 16
	// maxAskedSizes bounds the places of one question.
	maxAskedSizes = 1 << 16
	// functionClass is how the names of the classes begin in which a std::function keeps what it calls (libc++, __function::__func).
	functionClass = "NSt3__110__function6__funcI"
)

// askedOfClass is how many objects of a class are asked for: some, and more where none of these is there any more.
var askedOfClass = [...]int{64, 1024}

// memoryOf is where the memory of an object begins, and how far into it the object lies.
func memoryOf(object uint64) (start, in uint64) {
	if object%quantum != 0 {
		return object - emplaced, emplaced
	}
	return object, 0
}

// askedSize is the least size that the objects of a class can have, by malloc; 0 when it is not known.
func (n *Objects) askedSize(c *class) uint64 {
	if !n.sizesAsked {
		n.sizesAsked = true
		n.askSizes()
	}
	if len(c.sizes) == 0 {
		return 0
	}
	return c.sizes[0]
}

// askSizes asks for the sizes of the classes that matter.
func (n *Objects) askSizes() {
	open := n.sizedClasses()
	n.unsized = len(open) > 0
	var all []vouched
	for _, some := range askedOfClass {
		all = n.vouch(all, open, some)
	}
	n.keepWhole(all)
}

// vouched is an object of a class that answered with the size that most have.
type vouched struct {
	*class
	object, size uint64
}

// sizedClasses are the classes of which more than a base class's fields is read, with their objects: nodes of the
// graph, the autograd data of views, tensors of classes of their own, and what the functions of views keep.
func (n *Objects) sizedClasses() map[*class][]uint64 {
	out := map[*class][]uint64{}
	for _, role := range []role{roleNode, roleMeta, roleTensor} {
		for _, o := range n.byRole[role] {
			c := n.of(o)
			switch {
			case c == nil, c.name == accumulateClass, role == roleTensor && c.name == tensorClass, role == roleMeta && !c.is(viewMetaClass):
				continue
			}
			out[c] = append(out[c], o)
			if role == roleMeta {
				n.functionsOf(o, out)
			}
		}
	}
	return out
}

// functionsOf adds what the functions of a view keep.
func (n *Objects) functionsOf(meta uint64, out map[*class][]uint64) {
	for at := meta + 8; at < meta+maxMeta; at += 8 {
		if w := n.im.Word(at); w-meta >= maxMeta {
			if c := n.of(w); c != nil && strings.HasPrefix(c.name, functionClass) {
				out[c] = append(out[c], w)
			}
		}
	}
}

// votes are the sizes of a class's objects, and which have each.
type votes struct {
	tally
	of     int
	voters map[uint64][]uint64
}

// vouch asks for the sizes of so many objects of each class, evenly chosen, and takes from open those classes of which one answered. It
// appends some objects of those classes of which most say the same.
func (n *Objects) vouch(out []vouched, open map[*class][]uint64, some int) []vouched {
	some = max(1, min(some, maxAskedSizes/max(len(open), 1)))
	var places [][2]uint64
	var classes []*class
	for _, c := range n.list {
		list := open[c]
		for i := range min(some, len(list), maxAskedSizes-len(places)) {
			object := list[i*len(list)/min(some, len(list))]
			start, _ := memoryOf(object)
			places, classes = append(places, [2]uint64{object, start}), append(classes, c)
		}
	}
	all := map[*class]*votes{}
	for i, size := range n.answers(places) {
		if c := classes[i]; size != 0 {
			if all[c] == nil {
				all[c] = &votes{tally{}, 0, map[uint64][]uint64{}}
			}
			v := all[c]
			v.tally[size]++
			v.voters[size] = append(v.voters[size], places[i][0])
			v.of++
		}
	}
	for _, c := range n.list {
		if v := all[c]; v != nil {
			delete(open, c)
			size := v.best(v.of)
			for _, object := range v.voters[size][:min(len(v.voters[size]), maxVouched)] {
				out = append(out, vouched{c, object, size})
			}
		}
	}
	return out
}

// maxVouched is how many objects of a class are looked at for memory that begins within them.
const maxVouched = 3

// answers are the sizes of some objects, at least; 0 where it is not known, or something else is there by now.
func (n *Objects) answers(places [][2]uint64) []uint64 {
	answers := n.ask(places)
	out := make([]uint64, len(answers))
	for i, a := range answers {
		_, in := memoryOf(places[i][0])
		c, size := n.of(places[i][0]), (a[1]+7)&^7
		if c != nil && a[0] == c.vtable && size > in && size-in < maxNode {
			out[i] = size - in
		}
	}
	return out
}

// ask asks malloc, if there is something to ask. What does not answer all of it answers nothing.
func (n *Objects) ask(places [][2]uint64) [][2]uint64 {
	if len(places) == 0 {
		return nil
	}
	answers, err := n.abi.malloc.Sizes(places)
	if err != nil || len(answers) != len(places) {
		return nil
	}
	return answers
}

// keepWhole keeps the sizes of the classes whose objects are still there and have no other memory begin within
// them: otherwise what answers is not what it is taken for.
func (n *Objects) keepWhole(all []vouched) {
	var places [][2]uint64
	ends := make([]int, len(all))
	for i, v := range all {
		start, in := memoryOf(v.object)
		for at := uint64(quantum); at < in+v.size; at += quantum {
			places = append(places, [2]uint64{v.object, start + at})
		}
		ends[i] = len(places)
	}
	answers := n.ask(places[:min(len(places), maxAskedSizes)])
	broken := map[*class]bool{}
	from := 0
	for i, v := range all {
		there, whole := ends[i] <= len(answers), true
		for k := from; k < ends[i] && there; k++ {
			there, whole = answers[k][0] == v.vtable, whole && answers[k][1] == 0
		}
		from = ends[i]
		if there && whole {
			v.sizes = []uint64{v.size}
		}
		broken[v.class] = broken[v.class] || there && !whole
	}
	for _, v := range all {
		if broken[v.class] {
			v.sizes = nil
		}
		n.unsized = n.unsized && len(v.sizes) == 0
	}
}

// Unsized reports that malloc was asked how large objects are, and says it of none: what they hold is not followed.
func (t *Reader) Unsized() bool { return t.unsized }

// captured is where what a std::function of a view keeps lies apart from it; to is 0 when there is none, or it lies in the function itself.
func (t *Reader) captured(meta, at uint64) (from, to uint64) {
	w := t.im.Word(at)
	if t.abi.malloc == nil {
		if !t.isFunction(at) {
			return 0, 0
		}
		return w, w + min(t.chunk(w), maxCaptured)
	}
	if c := t.of(w); w-meta < maxMeta || c == nil || !strings.HasPrefix(c.name, functionClass) {
		return 0, 0
	}
	return w + 8, w + min(t.sizeOf(w), maxCaptured)
}
