// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"github.com/gputrace/gputrace/event"
)

// A frame of events has these columns. Its payload is the number of events, the number of annotations, the length of
// each column, and the columns. The shape of an event determines which columns have a value for it.
const (
	columnShape       = iota // number of the shape
	columnTime               // nanoseconds since the event before, signed
	columnAddr               // bytes from the address of the event before, signed; divided by alignment if isAligned
	columnStack              // number of the stack
	columnSize               // bytes
	columnRequested          // size less requested bytes, signed
	columnTotals             // allocated bytes, less those expected, then reserved bytes, less those before; signed
	columnHandle             // handle
	columnAnnotations        // annotations: number of events before, then as in annotation.go
	columns
)

// maxBlock is the maximum number of events in a frame.
const maxBlock = 8192

// blockWriter collects the columns of one frame of events.
type blockWriter struct {
	names  *nameWriter
	memory *memory

	n, annotations int
	column         [columns]column
	recent         []recentStack // by the low bits of the id
	payload        []byte
}

// stackSlots is the size of the cache of recent stacks, which are found without a map.
const stackSlots = 1 << 12

type recentStack struct {
	id     event.StackID // 0: free
	number int
}

// begin starts a new epoch.
func (b *blockWriter) begin() {
	b.names, b.memory, b.recent = newNameWriter(), newMemory(), make([]recentStack, stackSlots)
}

// add adds an event; resolve returns the event's stack, if the stack is new.
func (b *blockWriter) add(e *event.Event, resolve func(event.StackID) *event.Stack) {
	m := b.memory
	s := shape{
		pid: e.PID, tid: e.TID, kind: e.Kind, layer: e.Layer, object: e.Object, device: e.Device, call: e.Call,
		stream: e.Stream, context: e.Context,
	}
	if e.Stack != 0 {
		s.how |= hasStack
		b.column[columnStack].number(uint64(b.stack(e.Stack, resolve)))
	}
	b.addSizes(&s, e)
	if e.Allocated&e.Reserved != event.Unknown {
		b.addTotals(&s, e)
	}
	if e.Handle != event.Unknown {
		s.how |= hasHandle
		b.column[columnHandle].number(e.Handle)
	}
	change := e.Addr - m.addr
	if e.Addr%alignment == 0 && m.addr%alignment == 0 {
		s.how |= isAligned
		change = uint64(int64(change) / alignment)
	}
	b.column[columnAddr].signed(change)
	b.column[columnTime].signed(e.Time - m.time)
	m.addr, m.time = e.Addr, e.Time
	b.column[columnShape].number(uint64(b.names.shape(&s)))
	b.n++
}

func (b *blockWriter) stack(id event.StackID, resolve func(event.StackID) *event.Stack) int {
	at := &b.recent[id%stackSlots]
	if at.id != id {
		*at = recentStack{id, int(b.names.stack(id, resolve))}
	}
	return at.number
}

func (b *blockWriter) addSizes(s *shape, e *event.Event) {
	if e.Size != event.Unknown {
		s.how |= encodedValue
		b.column[columnSize].number(e.Size)
	}
	switch e.Requested {
	case event.Unknown:
	case e.Size:
		s.how |= encodedAsSize << howRequested
	default:
		s.how |= encodedValue << howRequested
		b.column[columnRequested].signed(e.Size - e.Requested)
	}
}

func (b *blockWriter) addTotals(s *shape, e *event.Event) {
	t := &b.memory.totals[b.memory.account(totalsKey{e.PID, e.Device})]
	expected := t.expect(e.Kind, e.Size)
	switch e.Allocated {
	case event.Unknown:
	case expected:
		s.how |= encodedAsBefore << howAllocated
	default:
		s.how |= encodedValue << howAllocated
		b.column[columnTotals].signed(e.Allocated - expected)
	}
	switch e.Reserved {
	case event.Unknown:
	case t.reserved:
		s.how |= encodedAsBefore << howReserved
	default:
		s.how |= encodedValue << howReserved
		b.column[columnTotals].signed(e.Reserved - t.reserved)
	}
	t.take(e.Allocated, e.Reserved)
}

// annotate adds an annotation after the events so far.
func (b *blockWriter) annotate(m *event.Annotation) {
	b.annotations++
	b.column[columnAnnotations].number(uint64(b.n))
	appendAnnotation(&b.column[columnAnnotations], m)
}

// bytes returns the approximate length of the payload.
func (b *blockWriter) bytes() int {
	sum := 0
	for i := range b.column {
		sum += len(b.column[i])
	}
	return sum
}

// take returns the payload, valid until the next call, and the offsets of its columns; nil when it is empty.
func (b *blockWriter) take() (payload []byte, starts []int) {
	if b.n+b.annotations == 0 {
		return nil, nil
	}
	out := column(b.payload[:0])
	out.number(uint64(b.n))
	out.number(uint64(b.annotations))
	for i := range b.column {
		out.number(uint64(len(b.column[i])))
	}
	for i := range b.column {
		starts = append(starts, len(out))
		out = append(out, b.column[i]...)
		b.column[i] = b.column[i][:0]
	}
	b.n, b.annotations, b.payload = 0, 0, out
	return out, starts
}

// blockReader reads the events of one frame.
type blockReader struct {
	names   *names
	memory  *memory
	account []int // for each shape, an index of memory.totals; -1: not looked up

	n, at       int // number of events in the frame, and of those returned
	annotations int // number of annotations left
	nextAt      int // number of events before the next annotation
	column      [columns]cursor
}

func newBlockReader() *blockReader { return &blockReader{names: newNames(), memory: newMemory()} }

// begin starts to read the payload of a frame, which must not change until it was read.
func (b *blockReader) begin(payload []byte) error {
	c := cursor{data: payload}
	n, annotations := c.number(), c.number()
	if n > maxBlock || annotations > uint64(len(payload)) {
		c.fail("%d events and %d annotations in a frame: at most %d", n, annotations, maxBlock)
	}
	var length [columns]uint64
	for i := range length {
		length[i] = c.number()
	}
	for i := range length {
		b.column[i] = cursor{data: c.bytes(length[i])}
	}
	b.n, b.at, b.annotations = int(n), 0, int(annotations)
	b.findAnnotation()
	if c.err != nil {
		return c.err
	}
	return b.column[columnAnnotations].err
}

// findAnnotation reads the position of the next annotation.
func (b *blockReader) findAnnotation() {
	b.nextAt = b.n + 1
	if b.annotations > 0 {
		b.nextAt = int(min(b.column[columnAnnotations].number(), uint64(b.n)))
	}
}

// read appends events up to the next annotation, the end of the frame or the capacity of out.
func (b *blockReader) read(out []event.Event) ([]event.Event, error) {
	for b.at < min(b.n, b.nextAt) && len(out) < cap(out) {
		out = out[:len(out)+1]
		b.event(&out[len(out)-1])
		b.at++
		if err := b.err(); err != nil {
			return out[:len(out)-1], err
		}
	}
	return out, nil
}

// readAnnotations returns the annotations at the current position.
func (b *blockReader) readAnnotations() ([]event.Annotation, error) {
	var out []event.Annotation
	for b.annotations > 0 && b.nextAt <= b.at {
		m := readAnnotation(&b.column[columnAnnotations])
		b.annotations--
		b.findAnnotation()
		if err := b.column[columnAnnotations].err; err != nil {
			return out, err
		}
		out = append(out, m)
	}
	return out, nil
}

// over reports whether the whole frame was returned.
func (b *blockReader) over() bool { return b.at >= b.n && b.annotations == 0 }

func (b *blockReader) err() error {
	for i := range b.column {
		if err := b.column[i].err; err != nil {
			return err
		}
	}
	return nil
}

func (b *blockReader) event(e *event.Event) {
	m := b.memory
	number := b.column[columnShape].index(len(b.names.shapes))
	if b.column[columnShape].err != nil {
		return
	}
	s := &b.names.shapes[number]
	*e = event.Event{
		PID: s.pid, TID: s.tid, Kind: s.kind, Layer: s.layer, Object: s.object, Device: s.device, Call: s.call,
		Stream: s.stream, Context: s.context, Handle: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown,
	}
	change := b.column[columnAddr].signed()
	if s.how&isAligned != 0 {
		change *= alignment
	}
	e.Addr, e.Time = m.addr+change, m.time+b.column[columnTime].signed()
	m.addr, m.time = e.Addr, e.Time
	if s.how&hasStack != 0 {
		stack := b.column[columnStack].index(len(b.names.ids))
		if b.column[columnStack].err != nil {
			return
		}
		e.Stack = b.names.ids[stack]
	}
	b.sizes(s, e)
	if s.how.allocated()|s.how.reserved() != encodedUnknown {
		b.totals(number, s, e)
	}
	if s.how&hasHandle != 0 {
		e.Handle = b.column[columnHandle].number()
	}
}

func (b *blockReader) sizes(s *shape, e *event.Event) {
	if e.Size = event.Unknown; s.how.size() == encodedValue {
		e.Size = b.column[columnSize].number()
	}
	switch s.how.requested() {
	case encodedUnknown:
		e.Requested = event.Unknown
	case encodedAsSize:
		e.Requested = e.Size
	default:
		e.Requested = e.Size - b.column[columnRequested].signed()
	}
}

func (b *blockReader) totals(number int, s *shape, e *event.Event) {
	for len(b.account) <= number {
		b.account = append(b.account, -1)
	}
	if b.account[number] < 0 {
		b.account[number] = b.memory.account(totalsKey{s.pid, s.device})
	}
	t := &b.memory.totals[b.account[number]]
	expected := t.expect(e.Kind, e.Size)
	switch s.how.allocated() {
	case encodedAsBefore:
		e.Allocated = expected
	case encodedValue:
		e.Allocated = expected + b.column[columnTotals].signed()
	}
	switch s.how.reserved() {
	case encodedAsBefore:
		e.Reserved = t.reserved
	case encodedValue:
		e.Reserved = t.reserved + b.column[columnTotals].signed()
	}
	t.take(e.Allocated, e.Reserved)
}
