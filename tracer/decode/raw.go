// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/unwind"
)

// Marks in the words of a RECORD_RAW (bpf/records.h).
const (
	boundaryWord = 1 << 62
	slotWord     = 1 << 61
)

// Limits of what is kept of raw stacks. A thread sends its stacks one after the other, each followed by its event.
const (
	maxCopies = 256     // copies whose RECORD_RAW has not arrived: at most one per thread, and leftovers of a full ring
	maxRawIDs = 1 << 16 // ids whose event has not arrived: half a minute at the highest rate
	maxNative = 320     // MAX_NATIVE
)

var errRawWords = errors.New("raw stack record whose words do not fit")

// stackCopy is a copy of a piece of a thread's stack at an event.
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

// set replaces a word, if it is in the copy.
func (c *stackCopy) set(addr, word uint64) {
	if off := addr - c.base; off <= uint64(len(c.data)) && uint64(len(c.data))-off >= 8 {
		binary.NativeEndian.PutUint64(c.data[off:], word)
	}
}

// activation is a run of Python frames, and the location of its eval loop on the C stack; 0: it follows from the loop's code.
type activation struct {
	at    uint64
	words []uint64
}

// rawWords is the decoded content of a RECORD_RAW.
type rawWords struct {
	regs    unwind.Registers
	partial event.StackID // the stack as far as the kernel unwound it
	slots   [][2]uint64   // addresses of return addresses that were replaced or, on arm64, CFAs of the functions; and their old values
	python  []activation
	// replaced are the old values by the CFA, once putBack was called.
	replaced map[uint64]uint64
}

// putBack returns the return addresses that return probes have replaced to the stack. On arm64 they may be in a register. Of several with
// one place the last has the real address.
func (r *rawWords) putBack(stack *stackCopy) {
	r.replaced = map[uint64]uint64{}
	for _, s := range r.slots {
		if linked {
			r.replaced[s[0]] = s[1]
		} else {
			stack.set(s[0], s[1])
		}
	}
}

// linked: a call leaves its return address in a register.
const linked = runtime.GOARCH == "arm64"

func parseRawWords(words []uint64) (rawWords, error) {
	var r rawWords
	if len(words) < int(bpf.TraceRawWordRAW_WORDS) {
		return r, errRawWords
	}
	copy(r.regs[:], words[:bpf.TraceRawWordRAW_PARTIAL])
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

// merge inserts the Python frames at their eval loops among the native frames, as the kernel does; frames without a
// loop come last. loop is the code of the eval loop, if it is needed to identify it.
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

// rawTable tracks raw stacks: their copies until they are unwound, then the ids of the resulting stacks.
type rawTable struct {
	copies  map[uint64]*stackCopy
	pending []uint64 // keys of copies, oldest first
	ids     map[event.StackID]event.StackID
	known   []event.StackID // keys of ids, oldest first; once there are maxRawIDs, a ring that begins at next
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

// addPage stores a piece of a stack. Pieces arrive in the order of their addresses.
func (t *rawTable) addPage(raw []byte) bool {
	r := bpf.TraceRecordRawPage{
		Len: binary.NativeEndian.Uint16(raw[2:]), Id: binary.NativeEndian.Uint64(raw[rawPageID:]),
		Addr: binary.NativeEndian.Uint64(raw[rawPageAddr:]),
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

// resolved records the id of the stack that a raw one has become.
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

// stack returns the final id of an event's stack.
func (t *rawTable) stack(id event.StackID) event.StackID {
	if len(t.ids) == 0 {
		return id
	}
	if s, ok := t.ids[id]; ok {
		return s
	}
	return id
}

// unwindRaw unwinds a raw stack. It hashes the frames as the kernel does, so that a stack has the same id wherever it was unwound.
func (p *Process) unwindRaw(r stackRecord) error {
	raw, err := parseRawWords(r.words)
	if err != nil {
		return err
	}
	if event.StackStatus(r.status) == event.StatusNoRow {
		p.code.Unknown() // the kernel may use rules of an earlier mapping
	}
	p.stacks.lookedUp = time.Now() // pages of the files are read, as for names
	stack := p.shared.raw.take(r.hash)
	raw.putBack(stack)
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
	u := unwind.Unwinder{Code: p.codeAt, Stack: stack, Text: p.code.Memory(), Mask: process.AddressMask(), Replaced: raw.replaced}
	return u.Walk(raw.regs, maxNative)
}

// withoutVain removes the frames after a guess that did not lead to the outermost frame: the stack then ends at the
// frame without unwind information.
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

// codeAt returns the target's code at an address, according to its known mappings.
func (p *Process) codeAt(addr uint64) unwind.Code {
	r := p.code.MappedAt(addr)
	if r == nil {
		return unwind.Code{}
	}
	return unwind.Code{Frames: r.File.Symbols.Frames(), Bias: r.Bias, Exec: true}
}

// statusOf returns the status of a stack that was unwound from a copy.
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

// StackSeed returns the initial value for the hashes of a process's stacks, after code has replaced other code `reused`
// times: the same addresses are then another stack.
func StackSeed(pid uint32, reused uint64) uint64 { return (uint64(pid) + reused<<32) * golden }

// hashWords returns the id of a stack, computed as in bpf/unwind.h from its native frames and its Python frames, with
// the number of native frames up to each activation.
func hashWords(seed uint64, words []uint64) uint64 {
	native, python, frames := seed, uint64(0), uint64(0)
	within := false // in an activation
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
