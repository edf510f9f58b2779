// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"encoding/binary"
	"path"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// frameKey is a frame as PyTorch writes it.
type frameKey struct {
	name, file string
	line       uint64
}

// stacks numbers the different stacks. Numbers are those of event.StackID and begin with 1.
type stacks struct {
	frames  []event.Frame
	frameAt map[frameKey]uint32
	modules map[string]*event.Module
	lists   [][]uint32 // index: number - 1
	listAt  map[string]uint32
	made    map[event.StackID]*event.Stack
	scrap   []byte
}

func newStacks() *stacks {
	return &stacks{
		frameAt: map[frameKey]uint32{}, modules: map[string]*event.Module{}, listAt: map[string]uint32{},
		made: map[event.StackID]*event.Stack{},
	}
}

// add returns the number of a stack; 0 if it has no frames.
func (s *stacks) add(frames []uint32) uint32 {
	if len(frames) == 0 {
		return 0
	}
	s.scrap = s.scrap[:0]
	for _, f := range frames {
		s.scrap = binary.LittleEndian.AppendUint32(s.scrap, f)
	}
	n, ok := s.listAt[string(s.scrap)]
	if !ok {
		s.lists = append(s.lists, frames)
		n = uint32(len(s.lists))
		s.listAt[string(s.scrap)] = n
	}
	return n
}

func (s *stacks) frame(k frameKey) uint32 {
	n, ok := s.frameAt[k]
	if !ok {
		n = uint32(len(s.frames))
		s.frames = append(s.frames, s.newFrame(k))
		s.frameAt[k] = n
	}
	return n
}

// newFrame determines the kind of a frame, which PyTorch does not write. A Python frame has a Python file, or a name in
// angle brackets instead ("<string>", "<frozen runpy>"), or the name of a notebook's cell, which also ends in .py; all
// others are native. If PyTorch did not symbolize a native frame, the line is an offset in the library.
func (s *stacks) newFrame(k frameKey) event.Frame {
	f := event.Frame{Kind: event.FrameNative, Func: k.name, File: k.file, Line: int(k.line)}
	switch {
	case isPython(&k):
		f.Kind = event.FramePython
		return f
	case isLibrary(k.file):
		f.Module, f.Offset, f.File, f.Line = s.module(k.file), k.line, "", 0
	case k.file == unknownName:
		f.File, f.Line = "", 0
	}
	if k.name == unknownName {
		f.Func = ""
		return f
	}
	f.Func = bare(k.name)
	return f
}

// unknownName is PyTorch's text for an unknown name.
const unknownName = "??"

func isPython(k *frameKey) bool {
	return strings.HasSuffix(k.file, ".py") || strings.HasPrefix(k.file, "<") && strings.HasSuffix(k.file, ">")
}

// isLibrary recognises "libc10.so", "libc.so.6", and programs, which have no extension.
func isLibrary(file string) bool {
	base := path.Base(file)
	return strings.HasSuffix(base, ".so") || strings.Contains(base, ".so.") || path.IsAbs(file) && !strings.Contains(base, ".") ||
		strings.HasPrefix(base, "python")
}

func (s *stacks) module(file string) *event.Module {
	m := s.modules[file]
	if m == nil {
		m = &event.Module{Path: file}
		s.modules[file] = m
	}
	return m
}

// bare returns the name of a native function without its parameters, which PyTorch writes, as event.Frame requires.
func bare(name string) string {
	s := strings.TrimSuffix(name, " const")
	if !strings.HasSuffix(s, ")") {
		return name
	}
	depth := 0
	for i := len(s) - 1; i > 0; i-- {
		switch s[i] {
		case ')':
			depth++
		case '(':
			if depth--; depth == 0 && !strings.HasSuffix(s[:i], "operator") {
				return s[:i]
			}
		}
	}
	return name
}

// stack returns a stack; nil for an unknown number.
func (s *stacks) stack(id event.StackID) *event.Stack {
	if id == 0 || uint64(id) > uint64(len(s.lists)) {
		return nil
	}
	if st := s.made[id]; st != nil {
		return st
	}
	list := s.lists[id-1]
	st := &event.Stack{ID: id, Frames: make([]event.Frame, len(list))}
	for i, f := range list {
		st.Frames[i] = s.frames[f]
	}
	st.Frames = st.Frames[recorderDepth(st.Frames):]
	s.made[id] = st
	return st
}

// recorderDepth returns the number of leaf frames that belong to PyTorch's recorder, which took the stack:
// torch::unwind and CapturedTraceback (torch/csrc/profiler/unwind and combined_traceback.cpp), and the function that
// calls it, which has no exported name.
func recorderDepth(frames []event.Frame) int {
	n := 0
	for n < len(frames) && (strings.HasPrefix(frames[n].Func, "torch::unwind::") ||
		strings.HasPrefix(frames[n].Func, "torch::CapturedTraceback::")) {
		n++
	}
	if n > 0 && n < len(frames) && frames[n].Kind == event.FrameNative &&
		(frames[n].Func == "" || strings.Contains(frames[n].Func, "gather")) {
		n++
	}
	return n
}
