// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/gputrace/gputrace/cpython/cells"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// maxStepText is how much text of the target a step has, bytes.
const maxStepText = 200

// path turns what the walk found into steps. depth counts paths of keys within paths.
func (r *reading) path(n uint32, depth int) Path {
	hops := r.graph.Way(n, r.moves)
	out := make(Path, 0, len(hops)+1)
	for i := 0; i < len(hops); i++ {
		h := &hops[i]
		if h.Left > 0 {
			s := Step{Kind: StepElided, Index: int64(h.Left), Addr: h.To &^ 1, Type: cutText(r.typeName(h.To))}
			if h.Linked {
				s.Name = cutText(r.torch.Heap().RefName(r.im, pyobject.Ref{Kind: h.Kind, Aux: h.Aux}))
			}
			if h.Elements {
				s.Name += "[]"
			}
			if h.Back.Kind != 0 {
				names := []string{s.Name, cutText(r.torch.Heap().RefName(r.im, h.Back))}
				slices.Sort(names)
				s.Name = names[0] + "/" + names[1]
			}
			out = append(out, s)
			continue
		}
		s := r.step(h.Kind, h.Aux, h.From, h.To, depth)
		if i+1 < len(hops) && r.ofThread(h.Node) {
			next := r.step(hops[i+1].Kind, hops[i+1].Aux, hops[i+1].From, hops[i+1].To, depth)
			if next.KeyKind == KeyObject && next.Type == "dict" { // not its arguments
				i++
				s = Step{Kind: StepDict, Addr: next.Addr, Type: next.Type}
			}
		}
		out = append(out, s)
	}
	return out
}

// ofThread reports whether an object is what a threading.local keeps in a field of C.
func (r *reading) ofThread(n uint32) bool {
	h := r.torch.Heap()
	p, ok := r.graph.Parent(n)
	kind, _ := r.graph.Link(n)
	return ok && h != nil && kind == pyobject.RefSlot && h.IsThreadLocal(r.im, r.graph.Addr(p))
}

// maxSteps bounds the steps of a path: of a longer one the middle is left out. A recurrent model's graph is thousands of nodes
// deep, and each of them may hold a block.
const maxSteps = 256

func (r *reading) step(kind pyobject.RefKind, aux, from, to uint64, depth int) Step {
	s := Step{Addr: to &^ 1, Type: r.typeName(to)}
	switch {
	case kind >= objgraph.RootModule:
		r.rootStep(&s, kind, aux)
	case kind >= torchlayout.RefGrad:
		r.torchStep(&s, kind, aux, from)
	default:
		r.pythonStep(&s, kind, aux, from, to, depth)
		s.Resets = r.resets(to)
		if h := r.torch.Heap(); to&1 == 0 && h != nil {
			if length, most, ok := h.Bounded(r.im, to); ok {
				s.Length, s.Most = length, most
			} else {
				s.Length, s.Most = r.limitOf(from, to, s.Name)
			}
		}
	}
	s.Name, s.Type = cutText(s.Name), cutText(s.Type)
	return s
}

// limitOf looks at the functions of the class or module of which a container is an attribute; most is 0 if they tell no limit.
func (r *reading) limitOf(from, to uint64, name string) (length, most uint64) {
	owner := from
	if n, found := r.graph.Number(from); found && r.typeName(from) == "dict" { // of an object, if it is one's
		if p, below := r.graph.Parent(n); below {
			owner = r.graph.Addr(p)
		}
	}
	if owner == 0 || owner&1 != 0 {
		return 0, 0
	}
	if r.limits == nil {
		r.limits = r.torch.Heap().NewLimits(r.im)
	}
	length, most, _ = r.limits.Find(owner, to, name)
	return length, most
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
	if name := r.torch.ClassName(at); name != "" {
		return name
	}
	if r.torch.Heap() != nil {
		if t := r.torch.Heap().TypeOf(r.im, at); t != nil {
			return t.Short()
		}
	}
	return ""
}

// selfKept begins the name of a node that its own ctx keeps, as varpath.SelfKept has it.
const selfKept = "self-kept "

func (r *reading) rootStep(s *Step, kind pyobject.RefKind, aux uint64) {
	switch kind {
	case objgraph.RootModule:
		s.Kind, s.Name = StepModule, r.graph.Module(aux).Name
	case objgraph.RootFrame:
		a, tid, depth := r.graph.Frame(aux)
		s.Kind, s.Frame = StepFrame, r.frame(a)
		s.Frame.Thread, s.Frame.Depth = tid, depth
	case objgraph.RootException:
		s.Kind, s.Frame = StepException, &Frame{Thread: r.graph.Thread(aux)}
	case objgraph.RootThreadDict:
		s.Kind, s.Frame = StepThreadState, &Frame{Thread: r.graph.Thread(aux)}
	case objgraph.RootContext:
		s.Kind, s.Name, s.Frame = StepThreadState, "context", &Frame{Thread: r.graph.Thread(aux)}
	case objgraph.RootNative:
		s.Kind, s.Name = StepNative, s.Type
		if r.torch.IsNode(s.Addr) {
			s.Name = r.nodeName(s.Addr)
		}
		if r.graph.SelfKept(s.Addr) {
			s.Name = selfKept + s.Name
		}
	case objgraph.RootGarbage:
		s.Kind, s.Name = StepGarbage, s.Type
		s.Cycle = r.cycle(s, r.graph.Cycle(s.Addr))
	case objgraph.RootHook:
		s.Kind, s.Name = StepOwnHook, s.Type
		if c := r.torch.Heap().CodeOf(r.im, s.Addr); c != nil {
			s.Name, s.Frame = c.Qualname, &Frame{Function: c.Qualname, File: r.fileName(c.Filename), Line: c.FirstLine}
		}
		s.Cycle = r.cycle(s, r.graph.HookCycle(s.Addr))
	}
}

// cycle is the way of garbage, or of a hook, back to itself, with its root.
func (r *reading) cycle(root *Step, turns []objgraph.Turn) Path {
	if len(turns) == 0 {
		return nil
	}
	out := Path{*root}
	for _, t := range turns {
		out = append(out, r.step(t.Ref.Kind, t.Ref.Aux, t.From, t.To, maxKeyDepth))
	}
	return out
}

// resets reports whether an object's class has the methods of a metric.
func (r *reading) resets(object uint64) bool {
	h := r.torch.Heap()
	if object&1 != 0 || h == nil {
		return false
	}
	t := h.TypeOf(r.im, object)
	if t == nil || !t.Heap() {
		return false
	}
	known, ok := r.metrics[t.Addr]
	if !ok {
		known = h.HasMethod(r.im, t, "reset") && h.HasMethod(r.im, t, "update")
		if r.metrics == nil {
			r.metrics = map[uint64]bool{}
		}
		r.metrics[t.Addr] = known
	}
	return known
}

// frame describes a frame.
func (r *reading) frame(a pyobject.Activation) *Frame {
	f := &Frame{}
	if c, err := r.torch.Heap().CodeAt(r.im, a.Code); err == nil {
		f.Function, f.File, f.Line = c.Qualname, r.fileName(c.Filename), c.Line(a.Instr)
	}
	return f
}

// fileName is how a person knows the file of a frame: In[14] of a notebook's cell.
func (r *reading) fileName(file string) string {
	if !cells.IsFile(file) {
		return file
	}
	name, ok := r.cells[file]
	if !ok {
		if name = file; r.heap != nil {
			c := cells.Find(r.heap, r.im, file)
			name = c.NameOf(file)
		}
		if r.cells == nil {
			r.cells = map[string]string{}
		}
		r.cells[file] = name
	}
	return name
}

func (r *reading) torchStep(s *Step, kind pyobject.RefKind, aux, from uint64) {
	switch kind {
	case torchlayout.RefGrad:
		s.Kind = StepGrad
	case torchlayout.RefGradFn:
		s.Kind, s.Name = StepGradFn, r.nodeName(s.Addr)
	case torchlayout.RefBase:
		s.Kind = StepBase
	case torchlayout.RefNext:
		s.Kind, s.Name, s.Index = StepNext, r.nodeName(s.Addr), int64(aux)
	case torchlayout.RefSaved:
		offset, position := torchlayout.SavedAt(aux)
		s.Kind, s.Index, s.Name = StepSaved, position, r.attributes.Saved(from, offset)
	case torchlayout.RefVariable:
		s.Kind = StepVariable
	case torchlayout.RefHook:
		s.Kind, s.Index = StepHook, int64(aux)
	case torchlayout.RefContext:
		s.Kind = StepContext
	case torchlayout.RefNode:
		s.Kind, s.Name = StepNode, r.nodeName(s.Addr)
	case torchlayout.RefStorage:
		s.Kind = StepStorage
	case torchlayout.RefInner:
		s.Kind, s.Index = StepSlot, int64(aux)
		s.Name = "<" + r.innerName(from) + "+" + strconv.FormatUint(aux, 10) + ">"
	}
}

// innerName is the class of a tensor or, where there is none, of the Python object that stands for one.
func (r *reading) innerName(from uint64) string {
	if name := r.torch.TensorClass(from); name != "" {
		return name
	}
	return r.typeName(from)
}

// nodeName is what Python calls a node: its class or, for that of a custom function, the class of its ctx.
func (r *reading) nodeName(node uint64) string {
	if o := r.torch.ContextOf(node); o != 0 {
		return r.typeName(o)
	}
	return r.typeName(node)
}

// pythonKinds are the steps that a reference between Python objects is, where nothing more is to be said.
var pythonKinds = map[pyobject.RefKind]StepKind{
	pyobject.RefIndex: StepIndex, pyobject.RefKey: StepKey, pyobject.RefKeyItself: StepKeyItself, pyobject.RefAttribute: StepAttribute,
	pyobject.RefMember: StepAttribute, pyobject.RefField: StepAttribute, pyobject.RefDict: StepDict, pyobject.RefLocal: StepLocal,
	pyobject.RefTemporary: StepTemporary, pyobject.RefCached: StepSlot, pyobject.RefActivation: StepFrameObject, pyobject.RefSlot: StepSlot,
}

func (r *reading) pythonStep(s *Step, kind pyobject.RefKind, aux, from, to uint64, depth int) {
	h := r.torch.Heap()
	s.Kind = pythonKinds[kind]
	switch kind {
	case pyobject.RefIndex:
		s.Index, s.Name = int64(aux), r.elementName(from, int(aux))
	case pyobject.RefTemporary:
		s.Index = int64(aux)
	case pyobject.RefKey:
		r.key(s, aux, depth)
	case pyobject.RefAttribute, pyobject.RefMember, pyobject.RefLocal:
		s.Name = h.RefName(r.im, pyobject.Ref{Kind: kind, Aux: aux})
	case pyobject.RefField:
		r.field(s, pyobject.FieldName(aux), from)
	case pyobject.RefActivation:
		if a, ok := h.Activation(r.im, to&^1); ok {
			s.Frame = r.frame(a)
		}
		if t := h.TypeOf(r.im, from); t != nil && t.Name != "frame" {
			s.Kind = StepSuspended
		}
	case pyobject.RefSlot:
		s.Name, s.Index = r.slotName(from, aux), int64(aux)
	case pyobject.RefCached:
		r.key(s, aux, depth)
		s.Kind, s.Name, s.KeyKind = StepSlot, pyobject.FieldCache.String(), KeyNone
	}
}

// field is the step through a field of one of the interpreter's own types.
func (r *reading) field(s *Step, f pyobject.FieldName, from uint64) {
	s.Name = f.String()
	switch f {
	case pyobject.FieldCellContents:
		s.Kind = StepCell
	case pyobject.FieldCache:
		s.Kind = StepSlot
	}
}

func (r *reading) key(s *Step, key uint64, depth int) {
	h := r.torch.Heap()
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
	if t := r.torch.Heap().TypeOf(r.im, object); t != nil {
		if r.arrays != nil {
			if name := r.arrays.Field(t, offset); name != "" {
				return name
			}
		}
		if name := r.attributes.Of(t, offset); name != "" {
			return name
		}
	}
	return "<" + r.typeName(object) + "+" + strconv.FormatUint(offset, 10) + ">"
}

// elementName is what an element of a tuple is called, by what the tuple is.
func (r *reading) elementName(tuple uint64, i int) string {
	h := r.torch.Heap()
	if function, field, ok := r.fieldOf(tuple); ok {
		switch field {
		case pyobject.FieldClosure:
			return h.FreeVariable(r.im, function, i)
		case pyobject.FieldDefaults:
			return h.Default(r.im, function, i)
		}
	}
	if t := h.TypeOf(r.im, tuple); t != nil {
		return h.TupleField(r.im, t, i)
	}
	return ""
}

// fieldOf is the field, and the object that has it, through which the best path gets to an object.
func (r *reading) fieldOf(object uint64) (owner uint64, field pyobject.FieldName, ok bool) {
	n, ok := r.graph.Number(object)
	if !ok {
		return 0, 0, false
	}
	kind, aux := r.graph.Link(n)
	p, ok := r.graph.Parent(n)
	if !ok || kind != pyobject.RefField {
		return 0, 0, false
	}
	return r.graph.Addr(p), pyobject.FieldName(aux), true
}
