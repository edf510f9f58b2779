// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TreeFrameKind says whose code a frame is.
type TreeFrameKind uint8

// The kinds of frames.
const (
	TreeOwn     TreeFrameKind = iota // a line of the program
	TreeLibrary                      // a line of an installed package or of the standard library
	TreeNative
	TreeNone // no frame: one of NoStack and its like
)

// TreeFrame is a frame as it is shown.
type TreeFrame struct {
	Kind   TreeFrameKind
	Name   string // function, native symbol, or what stands for a stack
	File   string // Python: the whole path; native: the object file
	Line   int    // 0: unknown
	Source string // text of the line, trimmed; empty when it cannot be read
}

// TreeNode is a frame under its caller.
type TreeNode struct {
	Parent int32 // index of the caller; of the root its own
	Frame  int32 // index in Frames
}

// segmentRule tells the segments of caching allocators as New does.
type segmentRule struct {
	trace   *view.Trace
	caching map[uint32]bool // processes with a caching allocator
	known   map[event.StackID]bool
}

func newSegmentRule(t *view.Trace) segmentRule {
	r := segmentRule{trace: t, caching: map[uint32]bool{}, known: map[event.StackID]bool{}}
	for i := range t.End().Snapshot.Accounts {
		r.caching[t.End().Snapshot.Accounts[i].PID] = true
	}
	return r
}

func (r *segmentRule) holds(b *heap.Block) bool {
	if b.Segment || b.Layer != event.LayerDevice || !r.caching[b.PID] || b.Stack == 0 {
		return b.Segment
	}
	yes, ok := r.known[b.Stack]
	if !ok {
		st := r.trace.Stack(b.Stack)
		yes = st != nil && stacks.IsSegment(st)
		r.known[b.Stack] = yes
	}
	return yes
}

// stackTree is the presented stacks.
type stackTree struct {
	trace  *view.Trace
	frames []TreeFrame
	nodes  []TreeNode
	frame  map[TreeFrame]int32
	node   map[TreeNode]int32
	sites  map[treeSite]treePlace
	limit  int
	cut    int
}

type treeSite struct {
	stack  event.StackID
	origin heap.Origin
}

type treePlace struct{ node, own int32 }

// newStackTree enters the stacks of a trace, those that allocated most first, so that they are there in full.
func newStackTree(t *view.Trace, limit int) *stackTree {
	s := &stackTree{
		trace: t, nodes: make([]TreeNode, 1), frame: map[TreeFrame]int32{}, node: map[TreeNode]int32{}, sites: map[treeSite]treePlace{},
		limit: limit,
	}
	sites := slices.Clone(t.End().Sites)
	slices.SortStableFunc(sites, func(x, y view.Site) int {
		return cmp.Compare(y.Alloc.Bytes+y.Inuse.Bytes, x.Alloc.Bytes+x.Inuse.Bytes)
	})
	for i := range sites {
		s.place(treeSite{sites[i].Site.Stack, sites[i].Origin}, &sites[i])
	}
	return s
}

// site is the place of a block's stack: its node, and the frame that it is named after.
func (s *stackTree) site(b *heap.Block) (node, own int32) {
	key := treeSite{b.Stack, b.Origin}
	p, ok := s.sites[key]
	if !ok {
		site := s.trace.Site(b)
		p = s.place(key, &site)
	}
	return p.node, p.own
}

func (s *stackTree) place(key treeSite, site *view.Site) treePlace {
	if p, ok := s.sites[key]; ok {
		return p
	}
	var p treePlace
	if site.Own == nil {
		p.own = s.frameOf(TreeFrame{Kind: TreeNone, Name: site.Name})
		p.node = s.nodeOf(TreeNode{0, p.own})
	} else {
		p.own = s.frameOf(s.show(site.Own))
		frames := stacks.VisibleFrames(site.Stack)
		if len(s.nodes) > s.limit {
			frames = nil
			s.cut++
		}
		p.node = s.path(frames, p.own)
	}
	s.sites[key] = p
	return p
}

// path enters a stack, leaf first; without frames it is the own line alone.
func (s *stackTree) path(frames []event.Frame, own int32) int32 {
	if len(frames) == 0 {
		return s.nodeOf(TreeNode{0, own})
	}
	at := int32(0)
	for i := len(frames) - 1; i >= 0; i-- {
		at = s.nodeOf(TreeNode{at, s.frameOf(s.show(&frames[i]))})
	}
	return at
}

func (s *stackTree) show(f *event.Frame) TreeFrame {
	if f.Kind != event.FramePython {
		out := TreeFrame{Kind: TreeNative, Name: f.Label()}
		if f.Module != nil {
			out.File = f.Module.Path
		}
		return out
	}
	out := TreeFrame{Kind: TreeOwn, Name: f.Func, File: f.File, Line: max(0, f.Line)}
	if s.trace.End().IsLibrary(f.File) {
		out.Kind = TreeLibrary
	}
	return out
}

func (s *stackTree) frameOf(f TreeFrame) int32 {
	i, ok := s.frame[f]
	if !ok {
		i = int32(len(s.frames))
		s.frame[f] = i
		s.frames = append(s.frames, f)
	}
	return i
}

func (s *stackTree) nodeOf(n TreeNode) int32 {
	i, ok := s.node[n]
	if !ok {
		i = int32(len(s.nodes))
		s.node[n] = i
		s.nodes = append(s.nodes, n)
	}
	return i
}

// fill hands the tree over, with the text of the lines.
func (s *stackTree) fill(b *Model) {
	var places []stacks.Place
	for i := range s.frames {
		if f := &s.frames[i]; f.Kind == TreeOwn || f.Kind == TreeLibrary {
			places = append(places, stacks.Place{File: f.File, Line: f.Line})
		}
	}
	text := s.trace.End().SourceLines(places)
	for i := range s.frames {
		if f := &s.frames[i]; f.Kind == TreeOwn || f.Kind == TreeLibrary {
			f.Source = text[stacks.Place{File: f.File, Line: f.Line}]
		}
	}
	b.Frames, b.Nodes, b.CutStacks = s.frames, s.nodes, s.cut
}
