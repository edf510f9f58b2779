// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"strconv"
	"unicode/utf8"

	"github.com/gputrace/gputrace/cpython"
)

// maxStepText is how much text of the target a step has, bytes.
const maxStepText = 200

// path turns what the walk found into steps. depth counts paths of keys within paths.
func (r *reading) path(n uint32, depth int) Path {
	chain := r.walk.chain(n)
	out := make(Path, 0, min(len(chain), maxSteps)+1)
	for i := 0; i < len(chain); i++ {
		if skip := len(chain) - maxSteps; i == maxSteps/2 && skip > 1 {
			i += skip - 1
			out = append(out, Step{Kind: StepElided, Index: int64(skip), Addr: r.walk.addrs[chain[i]] &^ 1, Type: cutText(r.typeName(r.walk.addrs[chain[i]]))})
			continue
		}
		out = append(out, r.stepTo(chain[i], depth))
	}
	return out
}

// maxSteps bounds the steps of a path: of a longer one the middle is left out. A recurrent model's graph is thousands of nodes
// deep, and each of them may hold a block.
const maxSteps = 256

// stepTo is the step that leads to an object on its best path.
func (r *reading) stepTo(n uint32, depth int) Step {
	w := r.walk
	var from uint64
	if p := w.parents[n]; p != noParent {
		from = w.addrs[p]
	}
	return r.step(w.kinds[n], w.aux[n], from, w.addrs[n], depth)
}

func (r *reading) step(kind cpython.RefKind, aux, from, to uint64, depth int) Step {
	s := Step{Addr: to &^ 1, Type: r.typeName(to)}
	switch {
	case kind >= rootModule:
		r.rootStep(&s, kind, aux)
	case kind >= refGrad:
		r.torchStep(&s, kind, aux, from)
	default:
		r.pythonStep(&s, kind, aux, from, to, depth)
	}
	s.Name, s.Type = cutText(s.Name), cutText(s.Type)
	return s
}

func cutText(s string) string {
	if len(s) <= maxStepText {
		return s
	}
	cut := maxStepText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// typeName is the Python type or the C++ class of an object; empty for a frame.
func (r *reading) typeName(at uint64) string {
	if at&1 != 0 {
		return ""
	}
	if c := r.torch.of(at); c != nil {
		return c.short()
	}
	if r.torch.heap != nil {
		if t := r.torch.heap.TypeOf(r.im, at); t != nil {
			return t.Short()
		}
	}
	return ""
}

func (r *reading) rootStep(s *Step, kind cpython.RefKind, aux uint64) {
	w := r.walk
	switch kind {
	case rootModule:
		s.Kind, s.Name = StepModule, w.modules[aux].Name
	case rootFrame:
		f := w.frames[aux]
		s.Kind, s.Frame = StepFrame, r.frame(f.Activation)
		s.Frame.Thread, s.Frame.Depth = w.threads[f.thread].TID, f.depth
	case rootException:
		s.Kind, s.Frame = StepException, &Frame{Thread: w.threads[aux].TID}
	case rootThreadDict:
		s.Kind, s.Frame = StepThreadState, &Frame{Thread: w.threads[aux].TID}
	case rootContext:
		s.Kind, s.Name, s.Frame = StepThreadState, "context", &Frame{Thread: w.threads[aux].TID}
	case rootNative:
		s.Kind, s.Name = StepNative, s.Type
		if r.torch.role(s.Addr) == roleNode {
			s.Name = r.nodeName(s.Addr)
		}
	case rootGarbage:
		s.Kind, s.Name = StepGarbage, s.Type
	}
}

// frame describes a frame.
func (r *reading) frame(a cpython.Activation) *Frame {
	f := &Frame{}
	if c, err := r.torch.heap.CodeAt(r.im, a.Code); err == nil {
		f.Function, f.File, f.Line = c.Qualname, c.Filename, c.Line(a.Instr)
	}
	return f
}

func (r *reading) torchStep(s *Step, kind cpython.RefKind, aux, from uint64) {
	switch kind {
	case refGrad:
		s.Kind = StepGrad
	case refGradFn:
		s.Kind, s.Name = StepGradFn, r.nodeName(s.Addr)
	case refBase:
		s.Kind = StepBase
	case refNext:
		s.Kind, s.Name, s.Index = StepNext, r.nodeName(s.Addr), int64(aux)
	case refSaved:
		s.Kind, s.Index = StepSaved, int64(aux>>savedPosition)-1
		s.Name = r.savedName(from, aux&(1<<savedPosition-1))
	case refVariable:
		s.Kind = StepVariable
	case refHook:
		s.Kind, s.Index = StepHook, int64(aux)
	case refContext:
		s.Kind = StepContext
	case refNode:
		s.Kind, s.Name = StepNode, r.nodeName(s.Addr)
	case refStorage:
		s.Kind = StepStorage
	case refInner:
		s.Kind, s.Index = StepSlot, int64(aux)
		s.Name = "<" + r.innerName(from) + "+" + strconv.FormatUint(aux, 10) + ">"
	}
}

// innerName is the class of a tensor or, where there is none, of the Python object that stands for one.
func (r *reading) innerName(from uint64) string {
	if c := r.torch.of(r.torch.tensorOf(from)); c != nil {
		return c.short()
	}
	return r.typeName(from)
}

// nodeName is what Python calls a node: its class or, for that of a custom function, the class of its ctx.
func (r *reading) nodeName(node uint64) string {
	if o := r.torch.contextOf(node); o != 0 {
		return r.typeName(o)
	}
	return r.typeName(node)
}

// pythonKinds are the steps that a reference between Python objects is, where nothing more is to be said.
var pythonKinds = map[cpython.RefKind]StepKind{
	cpython.RefIndex: StepIndex, cpython.RefKey: StepKey, cpython.RefKeyItself: StepKeyItself, cpython.RefAttribute: StepAttribute,
	cpython.RefMember: StepAttribute, cpython.RefField: StepAttribute, cpython.RefDict: StepDict, cpython.RefLocal: StepLocal,
	cpython.RefTemporary: StepTemporary, cpython.RefCached: StepSlot, cpython.RefActivation: StepFrameObject, cpython.RefSlot: StepSlot,
}

func (r *reading) pythonStep(s *Step, kind cpython.RefKind, aux, from, to uint64, depth int) {
	h := r.torch.heap
	s.Kind = pythonKinds[kind]
	switch kind {
	case cpython.RefIndex:
		s.Index, s.Name = int64(aux), r.elementName(from, int(aux))
	case cpython.RefTemporary:
		s.Index = int64(aux)
	case cpython.RefKey:
		r.key(s, aux, depth)
	case cpython.RefAttribute, cpython.RefMember, cpython.RefLocal:
		s.Name = h.RefName(r.im, cpython.Ref{Kind: kind, Aux: aux})
	case cpython.RefField:
		r.field(s, cpython.FieldName(aux), from)
	case cpython.RefActivation:
		if a, ok := h.Activation(r.im, to&^1); ok {
			s.Frame = r.frame(a)
		}
		if t := h.TypeOf(r.im, from); t != nil && t.Name != "frame" {
			s.Kind = StepSuspended
		}
	case cpython.RefSlot:
		s.Name, s.Index = r.slotName(from, aux), int64(aux)
	case cpython.RefCached:
		r.key(s, aux, depth)
		s.Kind, s.Name, s.KeyKind = StepSlot, cpython.FieldCache.String(), KeyNone
	}
}

// field is the step through a field of one of the interpreter's own types.
func (r *reading) field(s *Step, f cpython.FieldName, from uint64) {
	s.Name = f.String()
	switch f {
	case cpython.FieldCellContents:
		s.Kind = StepCell
	case cpython.FieldCache:
		s.Kind = StepSlot
	}
}

func (r *reading) key(s *Step, key uint64, depth int) {
	h := r.torch.heap
	if h.IsText(r.im, key) {
		s.KeyKind, s.Name = KeyString, h.Text(r.im, key)
		return
	}
	s.KeyText = cutText(h.Repr(r.im, key))
	if v, ok := h.Int(r.im, key); ok {
		s.KeyKind, s.Index = KeyInt, v
		return
	}
	s.KeyKind, s.KeyAddr, s.KeyType = KeyObject, key, r.typeName(key)
	if depth < maxKeyDepth {
		s.KeyPath = r.keyPath(key, depth+1)
	}
}

// slotName is the attribute that shows a field of an object of a C type, where exactly one does; else the type and the
// field's offset.
func (r *reading) slotName(object, offset uint64) string {
	if t := r.torch.heap.TypeOf(r.im, object); t != nil {
		if name := r.attributeOf(t, offset); name != "" {
			return name
		}
	}
	return "<" + r.typeName(object) + "+" + strconv.FormatUint(offset, 10) + ">"
}

// elementName is what an element of a tuple is called, by what the tuple is.
func (r *reading) elementName(tuple uint64, i int) string {
	h, w := r.torch.heap, r.walk
	if n, ok := w.index.get(tuple); ok && w.kinds[n-1] == cpython.RefField && w.parents[n-1] != noParent {
		function := w.addrs[w.parents[n-1]]
		switch cpython.FieldName(w.aux[n-1]) {
		case cpython.FieldClosure:
			return h.FreeVariable(r.im, function, i)
		case cpython.FieldDefaults:
			return h.Default(r.im, function, i)
		}
	}
	if t := h.TypeOf(r.im, tuple); t != nil {
		return h.TupleField(r.im, t, i)
	}
	return ""
}
