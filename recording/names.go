// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"

	"github.com/gputrace/gputrace/event"
)

// A frame of names adds rows to the tables of its epoch. Rows are numbered from 0 in the order of appearance. A number
// that can be missing is written plus one, and 0 means none. All numbers of the payload are varints, except the ids:
//
//	strings  n, then n times: length, bytes
//	modules  n, then n times: path, build id (strings), start, limit, file offset
//	frames   n, then n times: kind | eval<<7, function, linkage name, file (strings), line, first line (zigzag), module?,
//	         address, offset
//	nodes    n, then n times: caller? (node), frame
//	ids      n, then n times: the id of a stack, 8 bytes
//	stacks   n, then n times: number of the id, status, node? of the leaf
//	shapes   n, then n times: pid, tid, kind, layer, object, device type, device index (zigzag), call (string),
//	         stream + 1, context + 1 (modulo 2^64), how
//	inlined  n, then n times: a frame whose code is inlined into the next one's. Not there before version 1.1
//
// Stacks are stored as a tree whose roots are the outermost frames, and a stack is the path from a leaf: common parts
// are stored once.

// nodeKey is a frame with its caller.
type nodeKey struct{ parent, frame uint32 } // parent 0: outermost; otherwise the caller's number + 1

// nameWriter numbers the names that the events of an epoch use.
type nameWriter struct {
	strings map[string]uint32
	modules map[event.Module]uint32
	frames  map[event.Frame]uint32
	nodes   map[nodeKey]uint32
	ids     map[event.StackID]uint32
	shapes  map[shape]uint32
	open    []event.StackID // not resolved yet

	recent  [shapeSlots]recentShape
	pending [nameTables]table
	large   bool // enough is pending to write a frame
}

// The tables, in the order in which they are written.
const (
	tableStrings = iota
	tableModules
	tableFrames
	tableNodes
	tableIDs
	tableStacks
	tableShapes
	tableInlined
	nameTables
)

// table holds the rows that were not written yet.
type table struct {
	rows int
	data column
}

// shapeSlots is the size of the cache of shapes, which are found without a map.
const shapeSlots = 256

type recentShape struct {
	shape  shape
	number uint32
	used   bool
}

func newNameWriter() *nameWriter {
	return &nameWriter{
		strings: map[string]uint32{}, modules: map[event.Module]uint32{}, frames: map[event.Frame]uint32{},
		nodes: map[nodeKey]uint32{}, ids: map[event.StackID]uint32{}, shapes: map[shape]uint32{},
	}
}

// bytes returns the size of the pending rows.
func (n *nameWriter) bytes() int {
	sum := 0
	for i := range n.pending {
		sum += len(n.pending[i].data)
	}
	return sum
}

// take returns the payload of the rows added since the last call; nil: none.
func (n *nameWriter) take() []byte {
	if n.bytes() == 0 {
		return nil
	}
	n.large = false
	var out column
	for i := range n.pending {
		t := &n.pending[i]
		out.number(uint64(t.rows))
		out = append(out, t.data...)
		*t = table{data: t.data[:0]}
	}
	return out
}

func (n *nameWriter) row(table int) *column {
	n.pending[table].rows++
	return &n.pending[table].data
}

// maxText is the maximum length of a name, bytes; the rest is cut off.
const maxText = 1 << 16

func (n *nameWriter) text(s string) uint64 {
	s = s[:min(len(s), maxText)]
	i, ok := n.strings[s]
	if !ok {
		i = uint32(len(n.strings))
		n.strings[s] = i
		n.row(tableStrings).text(s)
	}
	return uint64(i)
}

// shape returns the number of a shape.
func (n *nameWriter) shape(s *shape) uint32 {
	at := &n.recent[(s.tid*31^uint32(s.how)^uint32(s.how)>>10^uint32(s.kind)<<5^uint32(s.stream))%shapeSlots]
	if at.used && at.shape == *s {
		return at.number
	}
	i, ok := n.shapes[*s]
	if !ok {
		i = uint32(len(n.shapes))
		n.shapes[*s] = i
		call := n.text(s.call)
		c := n.row(tableShapes)
		for _, v := range []uint64{uint64(s.pid), uint64(s.tid), uint64(s.kind), uint64(s.layer), uint64(s.object), uint64(s.device.Type)} {
			c.number(v)
		}
		c.signed(uint64(s.device.Index))
		for _, v := range []uint64{call, s.stream + 1, s.context + 1, uint64(s.how)} {
			c.number(v)
		}
	}
	*at = recentShape{*s, i, true}
	return i
}

// stack returns the number of a stack's id, and writes the stack's frames as soon as resolve returns them.
func (n *nameWriter) stack(id event.StackID, resolve func(event.StackID) *event.Stack) uint32 {
	if i, ok := n.ids[id]; ok {
		return i
	}
	i := uint32(len(n.ids))
	n.ids[id] = i
	n.row(tableIDs).fixed(uint64(id))
	if !n.define(id, resolve) {
		n.open = append(n.open, id)
	}
	n.large = n.bytes() > namesBytes
	return i
}

// retry resolves again the stacks that were not known.
func (n *nameWriter) retry(resolve func(event.StackID) *event.Stack) {
	still := n.open[:0]
	for _, id := range n.open {
		if !n.define(id, resolve) {
			still = append(still, id)
		}
	}
	n.open = still
}

func (n *nameWriter) define(id event.StackID, resolve func(event.StackID) *event.Stack) bool {
	if resolve == nil {
		return false
	}
	s := resolve(id)
	if s == nil {
		return false
	}
	node := uint32(0)
	for i := min(len(s.Frames), maxDepth) - 1; i >= 0; i-- {
		node = n.node(nodeKey{node, n.frame(&s.Frames[i])}) + 1
	}
	c := n.row(tableStacks)
	c.number(uint64(n.ids[id]))
	c.number(uint64(s.Status))
	c.number(uint64(node))
	return true
}

func (n *nameWriter) node(k nodeKey) uint32 {
	i, ok := n.nodes[k]
	if !ok {
		i = uint32(len(n.nodes))
		n.nodes[k] = i
		c := n.row(tableNodes)
		c.number(uint64(k.parent))
		c.number(uint64(k.frame))
	}
	return i
}

func (n *nameWriter) frame(f *event.Frame) uint32 {
	if i, ok := n.frames[*f]; ok {
		return i
	}
	i := uint32(len(n.frames))
	n.frames[*f] = i
	module := uint64(0)
	if f.Module != nil {
		module = n.module(f.Module) + 1
	}
	kind := uint64(f.Kind)
	if f.Eval {
		kind |= 1 << 7
	}
	function, linkage, file := n.text(f.Func), n.text(f.Linkage), n.text(f.File)
	c := n.row(tableFrames)
	for _, v := range []uint64{kind, function, linkage, file} {
		c.number(v)
	}
	c.signed(uint64(f.Line))
	c.signed(uint64(f.StartLine))
	for _, v := range []uint64{module, f.Addr, f.Offset} {
		c.number(v)
	}
	if f.Inlined {
		n.row(tableInlined).number(uint64(i))
	}
	return i
}

func (n *nameWriter) module(m *event.Module) uint64 {
	i, ok := n.modules[*m]
	if !ok {
		i = uint32(len(n.modules))
		n.modules[*m] = i
		path, id := n.text(m.Path), n.text(m.BuildID)
		c := n.row(tableModules)
		for _, v := range []uint64{path, id, m.Start, m.Limit, m.Offset} {
			c.number(v)
		}
	}
	return uint64(i)
}

// names holds the tables of an epoch that were read.
type names struct {
	strings []string
	modules []*event.Module
	frames  []event.Frame
	nodes   []nodeKey
	depths  []uint16 // of the nodes
	ids     []event.StackID
	stacks  map[event.StackID]definition
	shapes  []shape
}

// definition is a stack whose frames were not collected yet.
type definition struct {
	status event.StackStatus
	node   uint32 // number + 1 of the leaf; 0: no frames
}

// maxDepth is the maximum number of frames of a stack.
const maxDepth = 1<<16 - 1

// errDepth occurs only in files that gputrace did not write.
var errDepth = errors.New("a stack with more than 65535 frames")

func newNames() *names { return &names{stacks: map[event.StackID]definition{}} }

// read adds the tables of a frame.
func (n *names) read(payload []byte) error {
	c := &cursor{data: payload}
	for _, rows := range []struct {
		least int // bytes of a row
		read  func(*cursor)
	}{
		{1, n.readString}, {5, n.readModule}, {9, n.readFrame}, {2, n.readNode}, {8, n.readID}, {3, n.readStack}, {11, n.readShape},
		{1, n.readInlined},
	} {
		if len(c.data) == 0 && c.err == nil { // a file of an older minor version has fewer tables
			return nil
		}
		for range c.count(rows.least) {
			if rows.read(c); c.err != nil {
				return c.err
			}
		}
	}
	return c.err // a newer minor version can have more tables, which are ignored
}

func (n *names) readString(c *cursor) { n.strings = append(n.strings, c.text()) }

func (n *names) string(c *cursor) string {
	if i := c.index(len(n.strings)); c.err == nil {
		return n.strings[i]
	}
	return ""
}

func (n *names) readModule(c *cursor) {
	n.modules = append(n.modules, &event.Module{
		Path: n.string(c), BuildID: n.string(c), Start: c.number(), Limit: c.number(), Offset: c.number(),
	})
}

func (n *names) readFrame(c *cursor) {
	kind := c.number()
	f := event.Frame{
		Kind: event.FrameKind(kind & 0x7f), Eval: kind&0x80 != 0, Func: n.string(c), Linkage: n.string(c), File: n.string(c),
		Line: int(c.signed()), StartLine: int(c.signed()),
	}
	if m := c.index(len(n.modules) + 1); m > 0 {
		f.Module = n.modules[m-1]
	}
	f.Addr, f.Offset = c.number(), c.number()
	n.frames = append(n.frames, f)
}

func (n *names) readNode(c *cursor) {
	parent := c.index(len(n.nodes) + 1)
	depth := uint16(1)
	if parent > 0 {
		if n.depths[parent-1] == maxDepth {
			c.fail("%w", errDepth)
			return
		}
		depth += n.depths[parent-1]
	}
	n.nodes = append(n.nodes, nodeKey{uint32(parent), uint32(c.index(len(n.frames)))})
	n.depths = append(n.depths, depth)
}

func (n *names) readID(c *cursor) { n.ids = append(n.ids, event.StackID(c.fixed())) }

func (n *names) readStack(c *cursor) {
	id, status, node := c.index(len(n.ids)), c.index(256), c.index(len(n.nodes)+1)
	if c.err == nil {
		n.stacks[n.ids[id]] = definition{event.StackStatus(status), uint32(node)}
	}
}

func (n *names) readShape(c *cursor) {
	s := shape{
		pid: uint32(c.index(1 << 32)), tid: uint32(c.index(1 << 32)), kind: event.Kind(c.index(256)), layer: event.Layer(c.index(256)),
		object: event.Object(c.index(256)), device: event.Device{Type: event.DeviceType(c.index(256)), Index: int8(c.signed())},
		call: n.string(c), stream: c.number() - 1, context: c.number() - 1, how: how(c.index(1 << 32)),
	}
	if c.err == nil && !s.how.valid() {
		c.fail("a shape with fields encoded as %#x", uint32(s.how))
	}
	n.shapes = append(n.shapes, s)
}

func (n *names) readInlined(c *cursor) {
	if i := c.index(len(n.frames)); c.err == nil {
		n.frames[i].Inlined = true
	}
}

// stack collects the frames of a stack; nil when it was not defined.
func (n *names) stack(id event.StackID) *event.Stack {
	d, ok := n.stacks[id]
	if !ok {
		return nil
	}
	depth := uint16(0)
	if d.node > 0 {
		depth = n.depths[d.node-1]
	}
	s := &event.Stack{ID: id, Status: d.status, Frames: make([]event.Frame, 0, depth)}
	for at := d.node; at > 0; at = n.nodes[at-1].parent {
		s.Frames = append(s.Frames, n.frames[n.nodes[at-1].frame])
	}
	return s
}
