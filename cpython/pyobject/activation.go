// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"encoding/binary"
	"iter"

	"github.com/gputrace/gputrace/cpython"
)

// Activation is a frame: the running of a code object. To 3.10 it is an object, from 3.11 on a structure of its own, that a
// frame object may stand for.
type Activation struct {
	Addr  uint64
	Code  uint64 // address of its code object
	Instr uint64 // the raw word that Code.Line takes
}

// ThreadState is what a thread of the interpreter keeps.
type ThreadState struct {
	Addr uint64
	// TID is the thread id that the kernel knows, in the process's own PID namespace. Before 3.11 it is that of glibc's
	// control block: check that there is such a thread. 0: not known.
	TID uint64
	// Ident is what threading.get_ident() gives.
	Ident uint64
	// Frames are the frames of the thread, innermost first, without those of the interpreter itself.
	Frames []Activation
	// Cut says that the list of frames ended where it did not fit: it changed while it was read.
	Cut bool
	// Exceptions are addresses of the exceptions that are being handled, innermost first.
	Exceptions []uint64
	// Context is the address of the thread's contextvars.Context; 0: none.
	Context uint64
	// Dict is the address of the dictionary in which threading.local and others keep what belongs to the thread; 0: none.
	Dict uint64
}

const (
	tcbSelf        = 0x10  // struct pthread.header.self: the block itself
	tcbThreadID    = 0x2d0 // struct pthread.tid of glibc on x86-64 (nptl/descr.h)
	ownerGenerator = 1     // FRAME_OWNED_BY_GENERATOR, 3.11+ (Include/internal/pycore_frame.h)
	ownerShim      = 3     // FRAME_OWNED_BY_CSTACK, 3.12+
	maxDepth       = 1 << 17
)

// ThreadStates lists the threads of all interpreters with their frames. Links that do not fit end a list.
func (h *Heap) ThreadStates(img Image) []ThreadState {
	var out []ThreadState
	for at := range h.threads(img) {
		out = append(out, h.threadState(img, at))
	}
	return out
}

// threads lists the addresses of the states of the threads of all interpreters.
func (h *Heap) threads(img Image) iter.Seq[uint64] {
	l := h.objects
	return func(yield func(uint64) bool) {
		seen := map[uint64]bool{0: true}
		for _, interp := range h.interpreters(img) {
			for at := img.Word(interp + uint64(l.interpThreads)); !seen[at] && len(seen) <= maxThreads; {
				seen[at] = true
				if img.Word(at+uint64(l.tstateInterp)) != interp {
					break
				}
				if !yield(at) {
					return
				}
				at = img.Word(at + uint64(l.tstateNext))
			}
		}
	}
}

func (h *Heap) threadState(img Image, at uint64) ThreadState {
	l := h.objects
	t := ThreadState{
		Addr: at, Ident: img.Word(at + uint64(l.tstateThread)), Dict: img.Word(at + uint64(l.tstateDict)),
		Context: img.Word(at + uint64(l.tstateContext)),
	}
	if l.tstateNative != cpython.NoField {
		t.TID = img.Word(at + uint64(l.tstateNative))
	} else if img.Word(t.Ident+tcbSelf) == t.Ident {
		t.TID = uint64(word32(img, t.Ident+tcbThreadID))
	}
	t.Frames, t.Cut = h.frames(img, h.innermost(img, at))
	seen := map[uint64]bool{0: true}
	for item := img.Word(at + uint64(l.tstateExc)); !seen[item] && len(seen) < maxDepth; {
		seen[item] = true
		if e := img.Word(item + uint64(l.excValue)); e != 0 {
			t.Exceptions = append(t.Exceptions, e)
		}
		item = img.Word(item + uint64(l.excPrevious))
	}
	return t
}

// innermost is the frame that a thread runs in; 0: none.
func (h *Heap) innermost(img Image, thread uint64) uint64 {
	if l := h.objects; l.tstateFrame == cpython.NoField {
		return img.Word(img.Word(thread+uint64(l.tstateCFrame)) + uint64(l.cframeFrame))
	}
	return img.Word(thread + uint64(h.objects.tstateFrame))
}

// RunningFrames lists the addresses of the frames of all threads, as far as they can be followed, and of the states
// of these threads. What lies there is not checked.
func (h *Heap) RunningFrames(img Image) (out map[uint64]bool, threads []uint64) {
	out = map[uint64]bool{}
	for at := range h.threads(img) {
		threads = append(threads, at)
		for frame := h.innermost(img, at); frame != 0 && !out[frame] && len(out) < maxDepth; {
			out[frame] = true
			frame = img.Word(frame + uint64(h.objects.framePrevious))
		}
	}
	return out, threads
}

func (h *Heap) frames(img Image, frame uint64) (out []Activation, cut bool) {
	seen := map[uint64]bool{}
	for ; frame != 0; frame = img.Word(frame + uint64(h.objects.framePrevious)) {
		if seen[frame] || len(seen) >= maxDepth {
			return out, true
		}
		seen[frame] = true
		if h.shim(img, frame) {
			continue
		}
		a, ok := h.Activation(img, frame)
		if !ok {
			return out, true
		}
		out = append(out, a)
	}
	return out, false
}

// OfGenerator reports whether a frame belongs to a generator or coroutine: it is in that object, and runs for a part of
// the time. To 3.10 that is not known.
func (h *Heap) OfGenerator(img Image, frame uint64) bool {
	return h.objects.frameOwner != cpython.NoField && owner(img, frame, h.objects) == ownerGenerator
}

// Suspended reports whether a frame belongs to a generator or coroutine that does not run, and has not ended. To 3.10 that is not known.
func (h *Heap) Suspended(img Image, frame uint64) bool {
	l := h.objects
	return l.generatorState != cpython.NoField && h.OfGenerator(img, frame) && h.suspended(img, frame-uint64(l.generatorFrame))
}

func (h *Heap) shim(img Image, frame uint64) bool {
	return h.Version.Minor >= 12 && owner(img, frame, h.objects) >= ownerShim
}

func owner(img Image, frame uint64, l *objectLayout) byte {
	if b := img.View(frame+uint64(l.frameOwner), 1); b != nil {
		return b[0]
	}
	return 0
}

// Activation reads the frame at an address. ok is false when its code is none.
func (h *Heap) Activation(img Image, frame uint64) (a Activation, ok bool) {
	l := h.objects
	if frame&7 != 0 || frame < minAddress {
		return a, false
	}
	a = Activation{Addr: frame, Code: l.untagged(img.Word(frame + uint64(l.frameCode))), Instr: img.Word(frame + uint64(l.frameInstr))}
	if h.Version.Minor <= 10 { // f_lasti: an int
		a.Instr = uint64(uint32(a.Instr))
	}
	t := h.TypeOf(img, a.Code)
	return a, t != nil && t.Name == "code"
}

// Locals appends what a frame refers to: its variables, the values it computes with, and its dictionary of locals.
func (h *Heap) Locals(img Image, dst []Ref, a Activation) []Ref {
	l := h.objects
	dst = appendOwned(dst, Ref{Target: img.Word(a.Addr + uint64(l.frameLocals)), Aux: uint64(FieldLocals), Kind: RefField})
	var names []uint64
	stack := int(int32(word32(img, a.Code+uint64(l.codeStackSize))))
	if l.codeNames != cpython.NoField {
		names = h.elements(img, img.Word(a.Code+uint64(l.codeNames)))
	} else {
		for _, at := range []uint16{l.codeVarNames, l.codeCellVars, l.codeFreeVars} {
			names = append(names, h.elements(img, img.Word(a.Code+uint64(at)))...)
		}
	}
	if len(names) > maxLocals || stack < 0 || stack > maxLocals {
		return dst
	}
	values := a.Addr + uint64(l.frameValues)
	for i, name := range names {
		if target := img.Word(values + 8*uint64(i)); !l.stackRefs || target&tagBits == 0 {
			dst = appendOwned(dst, Ref{Target: target, Aux: name, Kind: RefLocal})
		}
	}
	top, known := h.stackTop(img, a, len(names))
	if !known {
		top = stack
	}
	at := values + 8*uint64(len(names))
	for i := range min(max(top, 0), stack) {
		target := img.Word(at + 8*uint64(i))
		if target >= minAddress && target&7 == 0 && h.TypeOf(img, target) != nil {
			dst = append(dst, Ref{Target: target, Aux: uint64(i), Kind: RefTemporary, Doubtful: !known})
		}
	}
	return dst
}

// stackTop is how many values are on a frame's stack. known is false while the frame runs: the eval loop keeps it to itself.
func (h *Heap) stackTop(img Image, a Activation, locals int) (top int, known bool) {
	at := a.Addr + uint64(h.objects.frameTop)
	switch v := h.Version.Minor; {
	case v <= 9: // f_stacktop: a pointer, null while it runs
		p, base := img.Word(at), img.Word(a.Addr+uint64(h.objects.frameStack))
		return int(p-base) / 8, p >= base && p-base < 8*maxLocals
	case v == 10: // f_stackdepth: -1 while it runs
		n := int(int32(word32(img, at)))
		return n, n >= 0
	case v >= 14: // stackpointer: while it runs, that of its last call
		p, base := img.Word(at), a.Addr+uint64(h.objects.frameValues)+8*uint64(locals)
		return int(p-base) / 8, p >= base && p-base < 8*maxLocals && h.suspended(img, a.Addr-uint64(h.objects.generatorFrame))
	default: // stacktop: counts the variables too; -1 while it runs
		n := int(int32(word32(img, at)))
		return n - locals, n >= locals
	}
}

func word32(img Image, addr uint64) uint32 {
	if b := img.View(addr, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// tagBits are those of a _PyStackRef.
const tagBits = 3

// untagged is the address in a word of a frame that holds an object.
func (l *objectLayout) untagged(word uint64) uint64 {
	if !l.stackRefs {
		return word
	}
	return word &^ tagBits
}

// elements are those of a tuple.
func (h *Heap) elements(img Image, tuple uint64) []uint64 {
	n := h.word(img, tuple, objectSize)
	if n == 0 || n > maxLocals {
		return nil
	}
	raw := img.View(tuple+uint64(h.objects.tupleItems), 8*int(n))
	out := make([]uint64, len(raw)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return out
}

// frameObject refers to its frame; to 3.10 it is the frame.
func (h *Heap) frameObject(img Image, dst []Ref, object uint64) []Ref {
	frame := object
	if h.objects.frameOfObject != cpython.NoField {
		frame = img.Word(object + uint64(h.objects.frameOfObject))
	}
	return appendOwned(dst, Ref{Target: frame, Kind: RefActivation})
}

// generator refers to its frame while it is suspended. While it runs, the frame is among those of its thread.
func (h *Heap) generator(img Image, dst []Ref, object uint64) []Ref {
	l := h.objects
	if l.generatorState == cpython.NoField {
		return appendOwned(dst, Ref{Target: img.Word(object + uint64(l.generatorFrame)), Kind: RefActivation})
	}
	if !h.suspended(img, object) {
		return dst
	}
	return append(dst, Ref{Target: object + uint64(l.generatorFrame), Kind: RefActivation})
}

// suspended reports whether there is a generator at an address, from 3.11 on, that has begun or will, and does not run.
func (h *Heap) suspended(img Image, object uint64) bool {
	t := h.TypeOf(img, object)
	b := img.View(object+uint64(h.objects.generatorState), 1)
	return t != nil && t.kind == kindGenerator && b != nil && int8(b[0]) < h.objects.generatorRuns
}
