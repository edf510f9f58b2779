// SPDX-License-Identifier: Apache-2.0

package kineto

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// ErrFormat means that a file is not a complete trace in Chrome's JSON format.
var ErrFormat = errors.New("not a trace of torch.profiler")

// maxTime limits times and durations, nanoseconds: the sum of two is still an int64. It is in the year 2116.
const maxTime = math.MaxInt64 / 2

// argsChunk is the size of the pieces of memory that hold the arguments of events, bytes.
const argsChunk = 1 << 20

// Open reads a trace from a file, gzipped or not. Errors name the file; a damaged file is an ErrFormat.
func Open(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // names the file
	}
	defer f.Close()
	t, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.Path = path
	return t, nil
}

// Read reads a trace, gzipped or not. It holds all events in memory, because Kineto does not sort them, but not the text.
func Read(r io.Reader) (*Trace, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	var src io.Reader = in
	if head, err := in.Peek(2); err == nil && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		src = z
	}
	p := &parser{
		dec: json.NewDecoder(src), trace: &Trace{LeftOut: map[string]int{}}, rows: map[rowKey]*Row{}, names: map[string]uint32{},
		arrows: map[string]*arrow{}, processes: map[id]*named{}, last: -1,
	}
	p.intern("")
	if err := p.file(); err != nil {
		return nil, p.explain(err)
	}
	p.finish()
	return p.trace, nil
}

// parser reads one trace.
type parser struct {
	dec   *json.Decoder
	trace *Trace
	base  int64 // Unix nanoseconds that times count from
	count int   // events read
	list  bool  // the list of events has begun

	rows      map[rowKey]*Row
	processes map[id]*named
	names     map[string]uint32
	arrows    map[string]*arrow
	chunk     []byte

	// The slice that was read last: a flow follows the slice to which it belongs.
	lastRow *Row
	last    int // index in lastRow.Events; -1: none
}

// id is a process or thread in a trace: a number or a text.
type id struct {
	number int64
	text   string // of what is no number, in quotes
}

// UnmarshalJSON accepts an integer or a string. Kineto of 2021 writes some thread IDs in quotes.
func (i *id) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64); err == nil {
		*i = id{number: n}
		return nil
	}
	*i = id{text: string(b)}
	return nil
}

// name returns the id for people.
func (i id) name() string {
	if i.text == "" {
		return strconv.FormatInt(i.number, 10)
	}
	var s string
	if json.Unmarshal([]byte(i.text), &s) != nil {
		return i.text
	}
	return s
}

// rowKey identifies a row.
type rowKey struct{ pid, tid id }

// named is what metadata say about a process.
type named struct {
	name, label string
	cpu         bool // one of the labels is CPU
}

// micros is a time in JSON, microseconds with a fraction, as nanoseconds.
type micros int64

// UnmarshalJSON reads the digits themselves: a float64 would round the time of older traces to 0.25 us.
func (m *micros) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	whole, fraction, _ := strings.Cut(string(b), ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	ns := int64(0)
	if err == nil && fraction != "" {
		ns, err = strconv.ParseInt((fraction + "00")[:3], 10, 64)
	}
	if err != nil || strings.ContainsAny(fraction, "eE") {
		f, err := strconv.ParseFloat(string(b), 64)
		if err != nil {
			return fmt.Errorf("%s is not a time in microseconds", b)
		}
		*m = micros(math.Round(max(-maxTime, min(f*1000, maxTime))))
		return nil
	}
	if n = max(-maxTime/1000, min(n, maxTime/1000)); n < 0 {
		ns = -ns
	}
	if n == 0 && whole[0] == '-' {
		ns = -ns
	}
	*m = micros(n*1000 + ns)
	return nil
}

// event is an element of traceEvents.
type event struct {
	Phase    string          `json:"ph"`
	Name     string          `json:"name"`
	Category string          `json:"cat"`
	PID      id              `json:"pid"`
	TID      id              `json:"tid"`
	Time     micros          `json:"ts"`
	Duration micros          `json:"dur"`
	ID       json.RawMessage `json:"id"`
	Args     json.RawMessage `json:"args"`
}

// skipped is a JSON value that is not used.
type skipped struct{}

// UnmarshalJSON ignores the value.
func (*skipped) UnmarshalJSON([]byte) error { return nil }

// file reads the whole file: an object with traceEvents, or only their list.
func (p *parser) file() error {
	first, err := p.dec.Token()
	switch {
	case err != nil:
		return err
	case first == json.Delim('['):
		err = p.events()
	case first == json.Delim('{'):
		err = p.object()
	default:
		return errNoEvents
	}
	if err != nil {
		return err
	}
	if !p.list {
		return errNoEvents
	}
	switch _, err := p.dec.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err == nil || errors.As(err, new(*json.SyntaxError)):
		return errAfterEnd
	default:
		return err
	}
}

var (
	errNoEvents = errors.New("it has no list traceEvents")
	errAfterEnd = errors.New("it goes on after its end")
)

func (p *parser) object() error {
	for p.dec.More() {
		key, err := p.dec.Token()
		if err != nil {
			return err
		}
		switch key {
		case "traceEvents":
			if start, err := p.dec.Token(); err != nil {
				return err
			} else if start != json.Delim('[') {
				return errNoEvents
			}
			err = p.events()
		case "baseTimeNanoseconds":
			err = p.dec.Decode(&p.base)
		default:
			err = p.dec.Decode(&skipped{})
		}
		if err != nil {
			return err
		}
	}
	_, err := p.dec.Token()
	return err
}

func (p *parser) events() error {
	p.list = true
	for p.dec.More() {
		var e event
		if err := p.dec.Decode(&e); err != nil {
			return err
		}
		p.count++
		p.event(&e)
	}
	_, err := p.dec.Token()
	return err
}

// explain returns what is wrong with the file, and where.
func (p *parser) explain(err error) error {
	where := ""
	if p.list {
		where = fmt.Sprintf(" after event %d", p.count)
	}
	switch {
	case errors.Is(err, errNoEvents), errors.Is(err, errAfterEnd):
	case errors.Is(err, io.EOF) && p.dec.InputOffset() == 0:
		err = errors.New("the file is empty")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("the file is cut off%s, at byte %d of its text", where, p.dec.InputOffset())
	default:
		err = fmt.Errorf("at byte %d of its text%s: %w", p.dec.InputOffset(), where, err)
	}
	return fmt.Errorf("%w: %w", ErrFormat, err)
}

// event adds an event to its row.
func (p *parser) event(e *event) {
	kind := Slice
	switch e.Phase {
	case "X":
	case "i", "I":
		kind = Instant
	case "C":
		kind = Counter
	case "M":
		p.metadata(e)
		return
	case "s", "t", "f":
		p.flow(e)
		return
	default:
		p.trace.LeftOut[fmt.Sprintf("events of the unknown type %q", e.Phase)]++
		return
	}
	row := p.row(e)
	row.gpu = row.gpu || onGPU(e.Category)
	if kind == Slice {
		p.lastRow, p.last = row, len(row.Events)
	} else {
		e.Duration = 0
	}
	row.Events = append(row.Events, Event{
		Time: int64(e.Time), Duration: max(0, int64(e.Duration)), Kind: kind, name: p.intern(e.Name), category: p.intern(e.Category),
		args: p.keep(e.Args),
	})
}

// onGPU reports whether events of a category happen on a GPU: kernel, gpu_memcpy, gpu_memset, gpu_user_annotation; in traces of 2021
// Kernel, Memcpy and Memset.
func onGPU(category string) bool {
	return strings.EqualFold(category, "kernel") || strings.HasPrefix(category, "gpu_") || category == "Memcpy" || category == "Memset"
}

func (p *parser) row(e *event) *Row {
	key := rowKey{e.PID, e.TID}
	row := p.rows[key]
	if row == nil {
		row = &Row{key: key, Lanes: 1}
		p.rows[key] = row
	}
	return row
}

// intern returns the index of a name.
func (p *parser) intern(name string) uint32 {
	i, ok := p.names[name]
	if !ok {
		i = uint32(len(p.trace.names))
		p.trace.names = append(p.trace.names, name)
		p.names[name] = i
	}
	return i
}

// keep returns a copy of arguments; nil if they are not an object with members.
func (p *parser) keep(args []byte) []byte {
	if len(args) == 0 || args[0] != '{' || len(bytes.TrimSpace(args[1:])) == 1 {
		return nil
	}
	if len(p.chunk)+len(args) > cap(p.chunk) {
		p.chunk = make([]byte, 0, max(argsChunk, len(args)))
	}
	from := len(p.chunk)
	p.chunk = append(p.chunk, args...)
	return p.chunk[from:len(p.chunk):len(p.chunk)]
}

// metadata notes names and the order of processes and threads. The last name counts, as in Chrome's viewer.
func (p *parser) metadata(e *event) {
	var args struct {
		Name   string `json:"name"`
		Labels string `json:"labels"`
		Sort   int64  `json:"sort_index"`
	}
	if json.Unmarshal(e.Args, &args) != nil {
		return
	}
	process := p.processes[e.PID]
	if process == nil {
		process = &named{}
		p.processes[e.PID] = process
	}
	switch e.Name {
	case "process_name":
		process.name = args.Name
	case "process_labels":
		if args.Labels == "CPU" {
			process.cpu = true
		} else {
			process.label = args.Labels
		}
	case "thread_name":
		p.row(e).Name = args.Name
	case "thread_sort_index":
		p.row(e).sort = args.Sort
	}
}

// flow adds a point of a flow: to the slice before it in the file, if that begins at the same moment, else to the slice around it.
func (p *parser) flow(e *event) {
	key := e.Category + "\x00" + e.Name + "\x00" + string(e.ID)
	a := p.arrows[key]
	if a == nil {
		a = &arrow{key: key}
		p.arrows[key] = a
	}
	f := flow{of: a, point: FlowStart}
	switch e.Phase {
	case "s":
		a.started = true
	case "t":
		f.point = FlowStep
	case "f":
		f.point, f.end = FlowEnd, a.ends
		a.ends++
	}
	p.trace.flows = append(p.trace.flows, f)
	n := int32(len(p.trace.flows))
	row := p.row(e)
	if row == p.lastRow && p.last >= 0 && row.Events[p.last].Time == int64(e.Time) {
		p.trace.bind(&row.Events[p.last], n)
		return
	}
	row.unbound = append(row.unbound, unbound{int64(e.Time), n})
}

// bind adds a flow to an event.
func (t *Trace) bind(e *Event, flow int32) {
	t.flows[flow-1].next = e.flow
	e.flow = flow
}
