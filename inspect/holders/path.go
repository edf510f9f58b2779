// SPDX-License-Identifier: Apache-2.0

package holders

import "strings"

// StepKind says how a step gets from one object to the next.
type StepKind uint8

// The kinds of step. The first step of a path is a root, all others are links. Numbers are never reused. Behind each is
// the Python expression that evaluates it, x being what the path led to so far.
const (
	// StepModule is a root: sys.modules[Name].
	StepModule StepKind = 1
	// StepFrame is a root: a frame of a running thread. sys._current_frames()[thread], Frame.Depth times f_back.
	StepFrame StepKind = 2
	// StepException is a root: the exception that a thread (Frame.Thread) is handling.
	StepException StepKind = 3
	// StepThreadState is a root: the dictionary that a thread's state holds, in which threading.local is, or, when Name is
	// "context", the thread's contextvars.Context.
	StepThreadState StepKind = 4
	// StepGarbage is a root: an object of type Name at Addr that nothing reaches and the cycle collector has on its lists.
	StepGarbage StepKind = 5
	// StepNative is a root: an object of the C++ class Name at Addr, which nothing that is known reaches; a running
	// backward pass, a reducer, an extension.
	StepNative StepKind = 6
	// StepOwnHook is a root: the callable at Addr that is a hook in a graph of autograd and keeps the graph by referring to a tensor of it.
	// Frame says where its code is, and Name is the name of the function, or the type of what is no function.
	StepOwnHook StepKind = 7

	// StepLocal is the local variable Name of a frame: x.f_locals[Name]. It includes cell variables: then x.f_locals
	// gives the contents and the next step, StepCell, is already taken.
	StepLocal StepKind = 10
	// StepTemporary is a value that a frame is computing with, number Index of its stack. It has no expression.
	StepTemporary StepKind = 11
	// StepAttribute is getattr(x, Name); of a module, x.__dict__[Name].
	StepAttribute StepKind = 12
	// StepIndex is x[Index] of a list, tuple or deque. Name is set where the element has one: the field of a named tuple, the
	// variable of a __closure__, the parameter of __defaults__.
	StepIndex StepKind = 13
	// StepKey is x[key] of a dictionary: the key is Name when KeyKind is KeyString, Index when it is KeyInt, the object
	// at KeyAddr otherwise, which KeyPath leads to, if a path is known.
	StepKey StepKind = 14
	// StepKeyItself is the key of a dictionary, or the element of a set: the object at Addr in x.
	StepKeyItself StepKind = 15
	// StepCell is x.cell_contents.
	StepCell StepKind = 16
	// StepDict is x.__dict__. It is in a path only when the dictionary is an object of its own.
	StepDict StepKind = 17
	// StepSuspended is the frame of a suspended generator or coroutine: x.gi_frame, x.cr_frame or x.ag_frame; Frame says where it stands.
	StepSuspended StepKind = 18
	// StepFrameObject is the frame that a frame object, for instance a traceback's tb_frame, stands for: x itself.
	StepFrameObject StepKind = 19
	// StepSlot is a field of an object of a C type that has no expression that is sure to give it; Index is its offset, bytes.
	// Name is the attribute that shows it where that is known ("_result"), "cache" for what functools.lru_cache keeps, else the
	// type and the offset in angle brackets. KeyText is the key of a cache.
	StepSlot StepKind = 20

	// StepGrad is x.grad.
	StepGrad StepKind = 30
	// StepGradFn is x.grad_fn; Name is the class of the node.
	StepGradFn StepKind = 31
	// StepNext is x.next_functions[Index][0]; Name is the class of the node. Index is -1 for the node that a CopySlices applies to the part
	// of a tensor that was written in place: Python cannot see it.
	StepNext StepKind = 32
	// StepSaved is a tensor that a node saved for backward: x._saved_NAME. Name is NAME where it is known, else empty:
	// then it is one of x's attributes that begin with _saved_ (or of x.saved_tensors). Index is the position in a list
	// of them (x._saved_NAME[Index]), -1 when it is no list.
	StepSaved StepKind = 33
	// StepVariable is x.variable of an AccumulateGrad node.
	StepVariable StepKind = 34
	// StepBase is x._base of a view.
	StepBase StepKind = 35
	// StepHook is an object that a hook of a tensor or node holds: one of x._backward_hooks' values, mostly.
	StepHook StepKind = 36
	// StepContext is the Python object of a custom autograd function: the node is the object itself, its ctx.
	StepContext StepKind = 37
	// StepNode is the node behind a Python object that stands for one: x itself.
	StepNode StepKind = 38
	// StepStorage is the storage behind a Python object that stands for one (torch.UntypedStorage): x itself.
	StepStorage StepKind = 39
	// StepElided stands for Index steps that are not listed, because the path is very long; mostly through the nodes of a graph. If
	// it has a Name, it stands for Index objects of one class that lead to each other, mostly by their attribute of this
	// name, by elements of it ("children[]"), or by one attribute and back by another one ("next/prev").
	// Addr and Type are of the object that they lead to.
	StepElided StepKind = 40
)

// KeyKind says what a dictionary's key is.
type KeyKind uint8

// The kinds of key.
const (
	KeyNone   KeyKind = 0 // the step has no key
	KeyString KeyKind = 1
	KeyInt    KeyKind = 2
	KeyObject KeyKind = 3
)

// Frame is a Python frame.
type Frame struct {
	Thread   uint64 // thread id, in the process's own PID namespace; 0 when it is not known or for a suspended frame
	Depth    int    // 0 is the innermost frame of the thread
	Function string // qualified name; the name before Python 3.11
	File     string
	Line     int // 0 when it is not known
}

// Step is one step of a path. Which fields are set depends on its kind.
type Step struct {
	Kind    StepKind
	Name    string // text of the target, at most 200 bytes; it may hold anything
	Index   int64
	KeyKind KeyKind
	KeyAddr uint64 // of StepKey with KeyObject: address of the key
	KeyPath Path   // of StepKey with KeyObject: where the key is found; empty when it is not known
	KeyType string // of StepKey with KeyObject: the type of the key
	// KeyText is how Python writes the key where that is simple but neither text nor an int: None, True, 1.5, a tuple of such.
	KeyText string
	Frame   *Frame // of StepFrame, StepException, StepThreadState (Thread only), StepSuspended, StepFrameObject, StepOwnHook
	// Addr is the address of the object that the step leads to: its id() when it is a Python object.
	Addr uint64
	// Type is the type of that object: a Python type's name, or a C++ class without its namespaces. Empty for frames.
	Type string
	// Cycle is, of StepGarbage, the way by which the object leads back to itself, of StepOwnHook the way to a tensor whose graph has the hook;
	// empty: it is not known.
	Cycle Path
	// Resets says that the class of that object has update() and reset(), as metrics have.
	Resets bool
	// Length and Most are the elements that a container with a bound has and can hold, such as a deque with a maxlen; Most 0: no bound.
	Length, Most uint64
}

// Path is how an object is reached: a root, then links. It is empty when no path is known.
type Path []Step

// String is the path as a Python programmer would write it: model.blocks[10].mlp[0].weight,
// opt.state[model.head.weight]['exp_avg'], train.py:108 train() local kept[7]. The attributes in which torch.nn.Module keeps
// things are left out, keys are quoted as Python quotes strings, and long chains of graph nodes are cut in the middle.
func (p Path) String() string { return render(p) }

// Module is the dotted name of the nn.Module that a parameter or buffer belongs to, as named_modules() gives it, behind
// the path of the outermost module: "model" and "blocks.10.mlp.0". ok is false when the path does not end in a
// module's parameter or buffer.
func (p Path) Module() (root, name string, ok bool) { return moduleOf(p) }

// shape is what a path has in common with those that lead through other elements of the same containers.
func (p Path) shape() string {
	var out strings.Builder
	for i := range p {
		s := &p[i]
		out.WriteByte(byte(s.Kind))
		if s.Kind != StepKey {
			out.WriteString(s.Name)
		}
		out.WriteByte(0)
	}
	return out.String()
}
