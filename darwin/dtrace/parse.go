// SPDX-License-Identifier: Apache-2.0

package dtrace

import (
	"bufio"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// Kind is what happened.
type Kind uint8

// The kinds.
const (
	Began   Kind = 1 // tracing began: Time
	Alloc   Kind = 2 // a block: Object, Size, Stack
	Free    Kind = 3 // its end
	Dealloc Kind = 4 // an object of Metal was freed
	Refused Kind = 5 // a request for a block: Size, Stack
	Heap    Kind = 6 // a MTLHeap was made: Object (0: it was refused), Size, Stack
	Buffer  Kind = 7 // a MTLBuffer with memory of its own, likewise
	Placed  Kind = 8 // a MTLBuffer in a heap: Object, Size, Heap, Offset
	Purged  Kind = 9 // a heap's memory was given back
)

// Frame is a native frame.
type Frame struct {
	Module string // base name; empty: not known
	Symbol string // mangled; empty: not known
	Offset uint64 // in the symbol; without one, the address
}

// Event is something that happened. Times are those of dtrace, nanoseconds.
type Event struct {
	Kind         Kind
	Time, Thread uint64
	Object       uint64
	Size         uint64
	Heap, Offset uint64
	Stack        []Frame // leaf first
	// Cut: the stack was not printed to its end.
	Cut bool
}

const (
	maxLine   = 64 << 10
	maxFrames = 1024
)

// Reader reads what the script printed. Lines that are not ours, or that make no sense, are counted and left out.
type Reader struct {
	// Foreign is how many lines were no event and no part of one; Broken are lines of ours that made no sense.
	Foreign, Broken uint64

	s       *bufio.Reader
	pending *Event // whose stack is being read
	ready   *Event // that comes next
}

// NewReader reads from standard output of dtrace.
func NewReader(r io.Reader) *Reader { return &Reader{s: bufio.NewReaderSize(r, maxLine)} }

// Next is the next event. The error is io.EOF after the last; a stack that was being printed then is cut.
func (r *Reader) Next() (*Event, error) {
	if e := r.ready; e != nil {
		r.ready = nil
		return e, nil
	}
	for {
		line, err := r.line()
		if err != nil && line == "" {
			return r.last(err)
		}
		if e := r.take(line); e != nil {
			return e, nil
		}
	}
}

// line is a line without its end. One that is too long is cut, and counted.
func (r *Reader) line() (string, error) {
	b, err := r.s.ReadSlice('\n')
	line := strings.TrimRight(string(b), "\r\n")
	if errors.Is(err, bufio.ErrBufferFull) {
		r.Foreign++
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.s.ReadSlice('\n')
		}
		line = ""
		if err == nil {
			return r.line()
		}
	}
	return line, err
}

func (r *Reader) last(err error) (*Event, error) {
	e := r.pending
	if e == nil {
		return nil, err
	}
	r.pending, e.Cut = nil, true
	return e, nil
}

// take takes a line; an event when one is complete.
func (r *Reader) take(line string) *Event {
	text := strings.TrimSpace(line)
	if !strings.HasPrefix(text, mark+"|") {
		r.frame(text)
		return nil
	}
	if text == mark+"|E" {
		e := r.pending
		if e == nil {
			r.Broken++
		}
		r.pending = nil
		return e
	}
	cut := r.pending // its end is missing: the buffer of the processor was full
	if cut != nil {
		cut.Cut = true
	}
	e, stack := parse(text)
	if e == nil {
		r.Broken++
		r.pending = nil
		return cut
	}
	if stack {
		r.pending = e
		return cut
	}
	r.pending = nil
	if cut != nil {
		r.ready = e
		return cut
	}
	return e
}

// lineKinds are the lines of ours by their letter: what they have behind time and thread, and whether a stack follows.
var lineKinds = map[string]struct {
	kind   Kind
	fields string // o: object, s: size, h: heap, f: offset
	stack  bool
}{
	"B": {Began, "", false}, "A": {Alloc, "os", true}, "F": {Free, "o", false}, "D": {Dealloc, "o", false}, "R": {Refused, "s", true},
	"H": {Heap, "os", true}, "M": {Buffer, "os", true}, "U": {Placed, "oshf", false}, "P": {Purged, "o", false},
}

// parse reads a line of ours; nil: it makes no sense.
func parse(text string) (e *Event, stack bool) {
	f := strings.Split(text, "|")
	k, ok := lineKinds[f[1]]
	if !ok || len(f) != 4+len(k.fields) {
		return nil, false
	}
	e = &Event{Kind: k.kind}
	errs := make([]error, 2, 6)
	e.Time, errs[0] = strconv.ParseUint(f[2], 10, 64)
	e.Thread, errs[1] = strconv.ParseUint(f[3], 10, 64)
	for i, field := range k.fields {
		to, base := e.field(field)
		n, err := strconv.ParseUint(f[4+i], base, 64)
		*to, errs = n, append(errs, err)
	}
	if errors.Join(errs...) != nil {
		return nil, false
	}
	return e, k.stack
}

// field is one of lineKinds, and the base that its numbers are printed in.
func (e *Event) field(name rune) (to *uint64, base int) {
	switch name {
	case 'o':
		return &e.Object, 16
	case 'h':
		return &e.Heap, 16
	case 'f':
		return &e.Offset, 10
	}
	return &e.Size, 10
}

// frame takes a line of a stack: "module`symbol+0x12", "module`0x12", "0x12".
func (r *Reader) frame(text string) {
	switch {
	case text == "":
	case strings.Contains(text, mark+"|"): // behind what was cut
		r.Broken++
	case r.pending == nil:
		r.Foreign++
	case len(r.pending.Stack) >= maxFrames:
		r.pending.Cut = true
	default:
		f, ok := parseFrame(text)
		if !ok {
			r.Foreign++
			return
		}
		r.pending.Stack = append(r.pending.Stack, f)
	}
}

func parseFrame(text string) (Frame, bool) {
	module, rest, found := strings.Cut(text, "`")
	if !found {
		module, rest = "", text
	}
	if address, ok := strings.CutPrefix(rest, "0x"); ok {
		n, err := strconv.ParseUint(address, 16, 64)
		return Frame{Module: module, Offset: n}, err == nil
	}
	if !found || rest == "" {
		return Frame{}, false
	}
	symbol, offset, _ := strings.Cut(rest, "+0x")
	n, err := strconv.ParseUint(offset, 16, 64)
	if offset == "" {
		n, err = 0, nil
	}
	return Frame{Module: module, Symbol: symbol, Offset: n}, err == nil
}

// Losses are what dtrace said on standard error that it lost.
type Losses struct {
	Drops   uint64 // records for which a buffer had no room
	Dynamic uint64 // values of variables of threads: sizes are then missing
	Errors  uint64 // actions that failed in a probe
}

// Lost is the sum: each is an event at most.
func (l *Losses) Lost() uint64 { return l.Drops + l.Dynamic + l.Errors }

// What dtrace prints (libdtrace, dt_handle.c): "dtrace: 12 drops on CPU 3", "dtrace: 4 dynamic variable drops with non-empty dirty list".
var (
	cpuDrops     = regexp.MustCompile(`^dtrace: (\d+) drops? on CPU \d+`)
	dynamicDrops = regexp.MustCompile(`^dtrace: (\d+) dynamic variable drops?`)
	otherDrops   = regexp.MustCompile(`^dtrace: (\d+) [a-z ]*drops?`)
	ended        = regexp.MustCompile(`^dtrace: pid \d+ (has )?exited`)
	probeError   = regexp.MustCompile(`^dtrace: error on enabled probe ID`)
)

// refusals are what dtrace says when it cannot attach, what that means and what to do (libproc.c and dt_proc.c of Apple's dtrace).
var refusals = []struct{ text, why string }{
	{"DTrace requires additional privileges", "dtrace needs root: sudo gputrace -p PID"},
	{"get-task-allow", "the program is hardened and does not have the entitlement com.apple.security.get-task-allow: sign a copy of your " +
		"own with it, " +
		"or use a Python of Homebrew, conda, uv or pyenv; gputrace doctor says how"},
	{"translated processes", "the program runs under Rosetta, where dtrace cannot attach: use a Python for arm64"},
	{"signed with restricted entitlements", "the program is one of macOS's own: use a Python of Homebrew, conda, uv or pyenv"},
	{"failed to grab pid", "the process cannot be attached to: it is of macOS itself, hardened, or traced by somebody else; gputrace " +
		"doctor says which"},
	{"No such process", "there is no such process"},
}

// Message takes a line of standard error. why is not empty when dtrace cannot go on, and says what to do. known is false for a line that
// is to be shown as it is.
func (l *Losses) Message(line string) (why string, known bool) {
	line = strings.TrimSpace(line)
	if line == "" || strings.Contains(line, "system integrity protection is on") || ended.MatchString(line) {
		return "", true // a notice, no error
	}
	for _, d := range []struct {
		expression *regexp.Regexp
		to         *uint64
	}{{cpuDrops, &l.Drops}, {dynamicDrops, &l.Dynamic}, {otherDrops, &l.Drops}} {
		if m := d.expression.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[1], 10, 32)
			if err != nil {
				n = 1
			}
			*d.to += n
			return "", true
		}
	}
	if probeError.MatchString(line) {
		l.Errors++
		return "", true
	}
	for _, r := range refusals {
		if strings.Contains(line, r.text) {
			return r.why, true
		}
	}
	return "", false
}
