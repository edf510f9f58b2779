// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package decode

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"
	"unsafe"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/unwind"
)

// Marks in the words of a RECORD_RAW (bpf/records.h).
const (
	boundaryWord = 1 << 62
	slotWord     = 1 << 61
)

// Limits of what is kept of raw stacks. A thread sends its stacks one after the other, each followed by its event.
const (
	maxCopies = 256     // whose RECORD_RAW is still to come: at most one a thread, and what a full ring left over
	maxRawIDs = 1 << 16 // whose event may still come: half a minute at the highest rate
	maxNative = 320     // MAX_NATIVE
)

var errRawWords = errors.New("raw stack record whose words do not fit")

// stackCopy is a piece of a thread's stack as it was at an event.
type stackCopy struct {
	base uint64
	data []byte
}

// ReadAt implements process.Memory.
func (c *stackCopy) ReadAt(b []byte, addr uint64) (int, error) {
	off := addr - c.base
	if off > uint64(len(c.data)) || uint64(len(b)) > uint64(len(c.data))-off {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, c.data[off:]), nil
}

// set puts a word in place of another. What is not in the copy is no matter.
func (c *stackCopy) set(addr, word uint64) {
	if off := addr - c.base; off <= uint64(len(c.data)) && uint64(len(c.data))-off >= 8 {
		binary.NativeEndian.PutUint64(c.data[off:], word)
	}
}

// activation is a run of Python frames and where on the C stack its eval loop lies; 0: that follows from the loop's code.
type activation struct {
	at    uint64
	words []uint64
}

// rawWords is what the words of a RECORD_RAW say.
type rawWords struct {
	regs    unwind.Registers
	partial event.StackID // the stack as far as the kernel came
	slots   [][2]uint64   // addresses of return addresses that were replaced, and what they were
	python  []activation
}

func parseRawWords(words []uint64) (rawWords, error) {
	var r rawWords
	if len(words) < int(bpf.TraceRawWordRAW_WORDS) {
		return r, errRawWords
	}
	copy(r.regs[:], words)
	r.partial = event.StackID(words[bpf.TraceRawWordRAW_PARTIAL])
	for words = words[bpf.TraceRawWordRAW_WORDS:]; len(words) > 0; {
		n := 2
		switch word := words[0]; {
		case word&pythonWord == 0 && word&boundaryWord != 0:
			r.python = append(r.python, activation{at: word &^ boundaryWord})
			n = 1
		case len(words) < 2:
			return r, errRawWords
		case word&pythonWord != 0 && len(r.python) > 0:
			last := &r.python[len(r.python)-1]
			last.words = append(last.words, words[:2]...)
		case word&pythonWord == 0 && word&slotWord != 0:
			r.slots = append(r.slots, [2]uint64{word &^ slotWord, words[1]})
		default:
			return r, errRawWords
		}
		words = words[n:]
	}
	return r, nil
}

// runsIn reports whether a native frame is the activation's eval loop, whose code is in the ranges.
func (a *activation) runsIn(f *unwind.StackFrame, loop []cpython.Range) bool {
	if a.at != 0 {
		return a.at >= f.SP && a.at < f.CFA
	}
	pc := f.PC
	if f.Caller {
		pc--
	}
	return f.CFA > f.SP && slices.ContainsFunc(loop, func(r cpython.Range) bool { return pc >= r.Start && pc < r.Limit })
}

// merge puts the Python frames where their eval loops lie among the native ones, as the kernel does: those that no frame
// claims come last. loop is the code of the eval loop, where that is needed to tell.
func (r *rawWords) merge(frames []unwind.StackFrame, loop []cpython.Range) []uint64 {
	var out []uint64
	python := r.python
	for i := range frames {
		out = append(out, frames[i].PC)
		if len(python) > 0 && python[0].runsIn(&frames[i], loop) {
			out = append(out, python[0].words...)
			python = python[1:]
		}
	}
	for i := range python {
		out = append(out, python[i].words...)
	}
	return out
}

// rawTable follows stacks that are sent raw: their copies until they are unwound, then which stack each has turned out to be.
type rawTable struct {
	copies  map[uint64]*stackCopy
	pending []uint64 // keys of copies, the oldest first
	ids     map[event.StackID]event.StackID
	known   []event.StackID // keys of ids, the oldest first, once there are maxRawIDs: a ring that begins at next
	next    int
	counts  figures.RawStacks
}

func newRawTable() *rawTable {
	return &rawTable{copies: map[uint64]*stackCopy{}, ids: map[event.StackID]event.StackID{}}
}

const (
	rawPageID     = int(unsafe.Offsetof(bpf.TraceRecordRawPage{}.Id))
	rawPageAddr   = int(unsafe.Offsetof(bpf.TraceRecordRawPage{}.Addr))
	rawPageHeader = int(unsafe.Offsetof(bpf.TraceRecordRawPage{}.Data))
)

// addPage keeps a piece of a stack. Pieces come in the order of their addresses.
func (t *rawTable) addPage(raw []byte) bool {
	r := bpf.TraceRecordRawPage{
		Len: binary.NativeEndian.Uint16(raw[2:]), Id: binary.NativeEndian.Uint64(raw[rawPageID:]), Addr: binary.NativeEndian.Uint64(raw[rawPageAddr:]),
	}
	data := raw[rawPageHeader:]
	if int(r.Len) > len(data) {
		return false
	}
	c := t.copies[r.Id]
	if c == nil {
		if len(t.pending) == maxCopies {
			t.take(t.pending[0])
		}
		c = &stackCopy{base: r.Addr}
		t.copies[r.Id], t.pending = c, append(t.pending, r.Id)
	}
	if r.Addr != c.base+uint64(len(c.data)) {
		return false
	}
	c.data = append(c.data, data[:r.Len]...)
	return true
}

// take returns the copy that belongs to a RECORD_RAW; an empty one when the kernel could read nothing.
func (t *rawTable) take(id uint64) *stackCopy {
	c := t.copies[id]
	if c == nil {
		return &stackCopy{}
	}
	delete(t.copies, id)
	t.pending = slices.DeleteFunc(t.pending, func(p uint64) bool { return p == id })
	return c
}

// resolved notes which stack a raw one has turned out to be.
func (t *rawTable) resolved(id, stack event.StackID) {
	t.ids[id] = stack
	if len(t.known) < maxRawIDs {
		t.known = append(t.known, id)
		return
	}
	delete(t.ids, t.known[t.next])
	t.known[t.next] = id
	t.next = (t.next + 1) % maxRawIDs
}

// stack is the id that an event's stack has for good.
func (t *rawTable) stack(id event.StackID) event.StackID {
	if len(t.ids) == 0 {
		return id
	}
	if s, ok := t.ids[id]; ok {
		return s
	}
	return id
}

// unwindRaw unwinds a stack that the kernel sent raw. Its frames are hashed as the kernel does it, so that a stack has one id,
// wherever it was unwound.
func (p *Process) unwindRaw(r stackRecord) error {
	raw, err := parseRawWords(r.words)
	if err != nil {
		return err
	}
	if event.StackStatus(r.status) == event.StatusNoRow {
		p.code.Unknown() // the kernel may go by what was mapped there before
	}
	p.stacks.lookedUp = time.Now() // as for names, pages of the files are read
	stack := p.shared.raw.take(r.hash)
	for _, s := range raw.slots {
		stack.set(s[0], s[1])
	}
	frames, end := p.walkCopy(&raw, stack)
	if end == unwind.WalkNoMapping && p.code.Refresh(frames[len(frames)-1].PC-1) {
		frames, end = p.walkCopy(&raw, stack)
	}
	frames, end = withoutVain(frames, end)
	status := statusOf(frames, end)
	if python := event.StackStatus(r.status); status.Complete() && (python == event.StatusPythonState || python == event.StatusTooDeep) {
		status = python
	}
	var loop []cpython.Range
	if py := p.code.Python(); py != nil {
		loop = py.Eval
	}
	words := raw.merge(frames, loop)
	id := event.StackID(hashWords(StackSeed(r.pid, p.code.Reused()), words))
	if end == unwind.WalkDone || len(frames) >= p.stacks.nativeFrames(raw.partial) {
		p.stacks.add(stackRecord{status: uint8(status), hash: uint64(id), words: words}, p.code.KnownAt, p.code.Memory(), p.code.Python())
	} else {
		id = raw.partial
	}
	p.shared.raw.resolved(event.StackID(r.hash), id)
	p.shared.raw.counts.Add(status)
	p.counts.Add(status)
	return nil
}

func (p *Process) walkCopy(raw *rawWords, stack *stackCopy) ([]unwind.StackFrame, unwind.WalkEnd) {
	u := unwind.Unwinder{Code: p.codeAt, Stack: stack, Text: p.code.Memory()}
	return u.Walk(raw.regs, maxNative)
}

// withoutVain takes out what a guess led to when it did not lead to the outermost frame: the stack ends at the frame without a
// description.
func withoutVain(frames []unwind.StackFrame, end unwind.WalkEnd) ([]unwind.StackFrame, unwind.WalkEnd) {
	if end == unwind.WalkDone {
		return frames, end
	}
	for i := range frames {
		if frames[i].Guessed {
			return frames[:i+1], unwind.WalkNoRow
		}
	}
	return frames, end
}

// codeAt is what the target has at an address, as far as its mappings are known.
func (p *Process) codeAt(addr uint64) unwind.Code {
	r := p.code.MappedAt(addr)
	if r == nil {
		return unwind.Code{}
	}
	return unwind.Code{Frames: r.File.Symbols.Frames(), Bias: r.Bias, Exec: true}
}

// statusOf is the status of a stack that was unwound from a copy.
func statusOf(frames []unwind.StackFrame, end unwind.WalkEnd) event.StackStatus {
	if end != unwind.WalkDone {
		return walkEnds[end]
	}
	for i := range frames {
		if frames[i].Guessed {
			return event.StatusGuessed
		}
	}
	return event.StatusUnwound
}

var walkEnds = map[unwind.WalkEnd]event.StackStatus{
	unwind.WalkNoMapping: event.StatusNoMapping, unwind.WalkNoRow: event.StatusNoRow, unwind.WalkBadRule: event.StatusBadRule,
	unwind.WalkNoMemory: event.StatusCopyEnds, unwind.WalkOrder: event.StatusOrder, unwind.WalkLimit: event.StatusTooDeep,
}

const golden = 0x9E3779B97F4A7C15 // GOLDEN

// StackSeed is what the hashes of a process's stacks begin with, when code has taken the place of other code `reused` times: the
// same addresses are then another stack.
func StackSeed(pid uint32, reused uint64) uint64 { return (uint64(pid) + reused<<32) * golden }

// hashWords is the id of a stack, as bpf/unwind.h makes it: of its native frames, and of its Python frames with how many native
// ones there are up to each activation.
func hashWords(seed uint64, words []uint64) uint64 {
	native, python, frames := seed, uint64(0), uint64(0)
	within := false // an activation
	for i := 0; i < len(words); i++ {
		if words[i]&pythonWord == 0 {
			native = mix(native, words[i])
			frames++
			within = false
			continue
		}
		if !within {
			python = mix(python, frames)
		}
		within = true
		python = mix(python, words[i])
		if i++; i < len(words) {
			python = mix(python, words[i])
		}
	}
	return mix(native, python)
}

func mix(hash, word uint64) uint64 {
	hash = (hash ^ word) * golden
	return hash ^ hash>>29
}
