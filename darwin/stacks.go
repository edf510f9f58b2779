// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/darwin/dtrace"
	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/symbolize"
)

const (
	defaultStacks = 1 << 16
	maxCodes      = 1 << 18
	maxSymbols    = 1 << 20
)

// ShimName is the base name of the library that is inserted.
const ShimName = "libgputrace.dylib"

// stackTable are the stacks of a process and what their numbers mean. Stacks are asked for from other goroutines too.
type stackTable struct {
	mu      sync.Mutex
	stacks  map[event.StackID]*event.Stack
	full    bool // there are more than are kept
	codes   map[uint64]*cpython.Code
	symbols map[uint64]*ring.Symbol
	modules map[uint64]*event.Module // by base
	names   map[string]string        // demangled
}

func newStackTable() *stackTable {
	return &stackTable{
		stacks: map[event.StackID]*event.Stack{}, codes: map[uint64]*cpython.Code{}, symbols: map[uint64]*ring.Symbol{},
		modules: map[uint64]*event.Module{}, names: map[string]string{},
	}
}

// Stack is a stack by its number; nil: not known.
func (t *stackTable) Stack(id event.StackID) *event.Stack {
	if id == event.StackOverLimit {
		return id.Placeholder()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stacks[id]
}

func (t *stackTable) addCode(r *ring.Record) error {
	c, err := r.Code()
	if err != nil {
		return err
	}
	code, ok := cpython.NewCode(&cpython.CodeParts{
		Minor: c.Minor, FreeThreaded: c.FreeThreaded, Address: c.Address, Qualname: c.Qualname, Name: c.Name, File: c.File,
		FirstLine: c.FirstLine, LineTable: c.LineTable,
	})
	if ok && len(t.codes) < maxCodes {
		t.codes[c.ID] = code
	}
	return nil
}

func (t *stackTable) addSymbol(r *ring.Record) error {
	s, err := r.Symbol()
	if err == nil && len(t.symbols) < maxSymbols {
		t.symbols[s.PC] = s
	}
	return err
}

// addStack makes a stack with names of a record, whose code and symbols came before it.
func (t *stackTable) addStack(r *ring.Record, limit int) error {
	s, err := r.Stack()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := event.StackID(s.ID)
	if t.stacks[id] != nil {
		return nil
	}
	if len(t.stacks) >= limit {
		t.full = true
		return nil
	}
	t.stacks[id] = t.merge(s)
	return nil
}

// merge puts Python's frames behind the native frames of the eval loops that run them. Where there are more or fewer runs than loops,
// they follow the native frames up to the first loop, and the status says so.
func (t *stackTable) merge(s *ring.Stack) *event.Stack {
	out := &event.Stack{ID: event.StackID(s.ID), Status: status(s.Python)}
	native, loops := t.native(s.Native)
	runs := t.runs(s.Frames)
	if len(runs) == loops {
		for i := range native {
			out.Frames = append(out.Frames, native[i])
			if native[i].Eval {
				out.Frames = append(out.Frames, runs[0]...)
				runs = runs[1:]
			}
		}
		return out
	}
	for i := range native {
		if native[i].Eval {
			break
		}
		out.Frames = append(out.Frames, native[i])
	}
	for _, run := range runs {
		out.Frames = append(out.Frames, run...)
	}
	if out.Status == event.StatusOK {
		out.Status = event.StatusPythonState
	}
	return out
}

func status(p ring.Python) event.StackStatus {
	switch p {
	case ring.PythonNone, ring.PythonRead:
		return event.StatusOK
	case ring.PythonCut:
		return event.StatusTooDeep
	}
	return event.StatusPythonState
}

// runs are Python's frames by the activations of the eval loop that run them. Code that tracebacks do not show is left out.
func (t *stackTable) runs(frames []ring.Frame) [][]event.Frame {
	var out [][]event.Frame
	var run []event.Frame
	for i := range frames {
		f := &frames[i]
		if code := t.codes[f.Code]; code == nil {
			run = append(run, event.Frame{Kind: event.FramePython, Func: "[unknown]"})
		} else if !code.Hidden {
			run = append(run, event.Frame{
				Kind: event.FramePython, Func: code.Qualname, File: code.Filename, Line: code.Line(f.Instr), StartLine: code.FirstLine,
			})
		}
		if f.Entry || i == len(frames)-1 {
			out = append(out, run)
			run = nil
		}
	}
	return out
}

// evalLoop are the beginnings of the names of CPython's eval loop.
const evalLoop = "_PyEval_EvalFrameDefault"

// native are the native frames without those of the shim itself, which are the first, and how many are the eval loop.
func (t *stackTable) native(pcs []uint64) (out []event.Frame, loops int) {
	ours := true
	for _, pc := range pcs {
		s := t.symbols[pc]
		if ours && (s == nil || s.Path == "" || strings.HasSuffix(s.Path, "/"+ShimName)) {
			continue
		}
		ours = false
		f := event.Frame{Kind: event.FrameNative, Addr: pc}
		if s != nil {
			f.Module, f.Offset = t.module(s), pc-s.Base
			f.Func, f.Linkage = t.demangle(s.Name), s.Name
			f.Eval = strings.HasPrefix(s.Name, evalLoop)
		}
		if f.Eval {
			loops++
		}
		out = append(out, f)
	}
	return out, loops
}

// module is the image of a symbol. How far it reaches is not known: as far as was seen.
func (t *stackTable) module(s *ring.Symbol) *event.Module {
	if s.Path == "" {
		return nil
	}
	m := t.modules[s.Base]
	if m == nil {
		m = &event.Module{Path: s.Path, Start: s.Base}
		t.modules[s.Base] = m
	}
	return m
}

func (t *stackTable) demangle(name string) string {
	if !strings.HasPrefix(name, "_Z") {
		return name
	}
	short, ok := t.names[name]
	if !ok {
		short = symbolize.Demangle(name)
		t.names[name] = short
	}
	return short
}

// addNative is the number of a stack that dtrace printed; it is made the first time. 0: it printed none.
func (t *stackTable) addNative(e *dtrace.Event, limit int) uint64 {
	if len(e.Stack) == 0 {
		return 0
	}
	h := fnv.New64a()
	for i := range e.Stack {
		fmt.Fprintf(h, "%s`%s+%x\n", e.Stack[i].Module, e.Stack[i].Symbol, e.Stack[i].Offset)
	}
	fmt.Fprint(h, e.Cut)
	id := event.StackID(h.Sum64() >> 1) // none of the special ones, which have all bits
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.stacks[id] != nil:
	case len(t.stacks) >= limit:
		t.full = true
	default:
		t.stacks[id] = t.printed(id, e)
	}
	return uint64(id)
}

// printed is a stack of the lines that dtrace printed. Of Python's frames it has the eval loops only.
func (t *stackTable) printed(id event.StackID, e *dtrace.Event) *event.Stack {
	out := &event.Stack{ID: id, Status: event.StatusOK}
	for i := range e.Stack {
		f := &e.Stack[i]
		x := event.Frame{Kind: event.FrameNative, Module: t.named(f.Module), Linkage: f.Symbol}
		if strings.HasPrefix(f.Symbol, "__Z") {
			x.Linkage = f.Symbol[1:] // Mach-O's names have one more
		}
		if x.Func = t.demangle(x.Linkage); x.Func == "" {
			x.Offset = f.Offset
		}
		if strings.HasPrefix(strings.TrimLeft(f.Symbol, "_"), strings.TrimLeft(evalLoop, "_")) {
			x.Eval, out.Status = true, event.StatusPythonState
		}
		out.Frames = append(out.Frames, x)
	}
	if e.Cut {
		out.Status = event.StatusTooDeep
	}
	return out
}

// named is the image of a name, of which the address is not known: each has one of its own.
func (t *stackTable) named(name string) *event.Module {
	if name == "" {
		return nil
	}
	for _, m := range t.modules {
		if m.Path == name {
			return m
		}
	}
	m := &event.Module{Path: name, Start: uint64(len(t.modules)+1) << 40}
	t.modules[m.Start] = m
	return m
}
