// SPDX-License-Identifier: Apache-2.0

// Package chrome writes a timeline as Chrome's trace events, in JSON: what torch.profiler writes too, on the same clock, so
// that the events of both can be put into one file. It has the totals, the allocations without their stacks, and the largest
// blocks from birth to end.
package chrome

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Input is what Write needs.
type Input struct {
	Timeline *view.Timeline
	// Trace is the one that the timeline is of.
	Trace *view.Trace
	PID   uint32 // the process that Name is of
	Name  string // empty: not known
	// Started is a wall clock time, and StartedBoot the same moment on the clock of the events, CLOCK_BOOTTIME nanoseconds.
	// Zero: not known; then times are since the machine was started.
	Started     time.Time
	StartedBoot uint64
	Comments    []string // about the trace, for people
	// Steps, and the times in which threads allocate in one phase: a row for the steps, one for each thread.
	Steps  []view.StepSpan
	Phases []view.PhaseSpan
}

// basePeriod is what Kineto rounds the wall clock down to, for the time that it counts from: 3 months of 30.436875 days, as
// the exports of PyTorch 2.15 have it in baseTimeNanoseconds. Microseconds since 1970 do not fit a double with their fractions.
const basePeriod = 7889238 * time.Second

// Write writes a trace. What was left out is in Input.Timeline after it, and in the trace's otherData.
func Write(w io.Writer, in Input) error {
	t := &trace{out: bufio.NewWriterSize(w, 1<<16), in: &in, quoted: map[string]string{}, last: map[counter]uint64{}, seen: map[uint32]bool{}}
	if started := in.Started.UnixNano(); in.StartedBoot != 0 && started > 0 {
		t.base = started - started%int64(basePeriod)
		t.shift = started - t.base - int64(in.StartedBoot)
	}
	t.text(`{"displayTimeUnit":"ms","baseTimeNanoseconds":`)
	t.text(strconv.FormatInt(t.base, 10))
	t.text(`,"traceEvents":[`)
	err := in.Timeline.Visit(&view.TimelineVisitor{Totals: t.totals, Alloc: t.alloc, OutOfMemory: t.outOfMemory})
	if err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	t.lifetimes()
	t.slices()
	t.text("\n],\"otherData\":")
	t.otherData()
	t.text("}\n")
	if err := t.out.Flush(); err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	return nil
}

// counter names one of a device's totals.
type counter struct {
	pid    uint32
	device event.Device
	what   string
}

// trace is a trace that is being written. Errors of the writer stay until Flush.
type trace struct {
	out    *bufio.Writer
	in     *Input
	base   int64 // wall clock that times count from, nanoseconds
	shift  int64 // from the clock of the events to the trace's, nanoseconds
	quoted map[string]string
	last   map[counter]uint64
	seen   map[uint32]bool // processes
	events uint64
	line   []byte
}

func (t *trace) text(s string) { _, _ = t.out.WriteString(s) }

// otherData says about the trace what is known of it, and what is not in it.
func (t *trace) otherData() {
	tl := t.in.Timeline
	b, err := json.Marshal(map[string]any{
		"gputrace": t.in.Comments, "allocations": tl.Shown.Objects, "allocated_bytes": tl.Shown.Bytes,
		"left_out_allocations": tl.Left.Objects, "left_out_bytes": tl.Left.Bytes, "min_size": tl.MinSize,
		"not_shown_last_ns": tl.To - tl.Until,
	})
	if err == nil { // it cannot fail with these types
		_, _ = t.out.Write(b)
	}
}

// begin begins an event.
func (t *trace) begin(phase, name string, pid, tid uint32, time uint64) {
	if !t.seen[pid] {
		t.process(pid)
	}
	if t.line = t.line[:0]; t.events > 0 {
		t.line = append(t.line, ',')
	}
	t.events++
	t.line = append(append(t.line, "\n{\"ph\":\""...), phase...)
	t.line = append(append(t.line, `","name":`...), t.quote(name)...)
	t.line = strconv.AppendUint(append(t.line, `,"pid":`...), uint64(pid), 10)
	t.line = strconv.AppendUint(append(t.line, `,"tid":`...), uint64(tid), 10)
	t.line = t.appendTime(append(t.line, `,"ts":`...), time)
}

// appendTime adds a time in microseconds, with all its nanoseconds.
func (t *trace) appendTime(b []byte, time uint64) []byte {
	ns := int64(time) + t.shift
	if ns < 0 { // before the base
		b, ns = append(b, '-'), -ns
	}
	b = append(strconv.AppendInt(b, ns/1000, 10), '.')
	for unit := int64(100); unit > 0; unit /= 10 {
		b = append(b, byte('0'+ns/unit%10))
	}
	return b
}

// field adds a field that is JSON already.
func (t *trace) field(name, value string) {
	t.line = append(append(append(append(t.line, `,"`...), name...), `":`...), value...)
}

// args adds numbers; event.Unknown: left out.
func (t *trace) args(args ...arg) {
	t.line = append(t.line, `,"args":{`...)
	first := true
	for _, a := range args {
		if a.value == event.Unknown {
			continue
		}
		if !first {
			t.line = append(t.line, ',')
		}
		first = false
		t.line = append(append(append(t.line, '"'), a.name...), `":`...)
		t.line = strconv.AppendUint(t.line, a.value, 10)
	}
	t.line = append(t.line, '}')
}

type arg struct {
	name  string
	value uint64
}

func (t *trace) end() {
	t.line = append(t.line, '}')
	_, _ = t.out.Write(t.line)
}

// quote makes a JSON string of a name, once. Names are foreign; what is not UTF-8 in them is replaced.
func (t *trace) quote(name string) string {
	q, ok := t.quoted[name]
	if !ok {
		b, err := json.Marshal(name)
		if err != nil { // strings cannot fail
			b = []byte(`""`)
		}
		q = string(b)
		t.quoted[name] = q
	}
	return q
}

func (t *trace) process(pid uint32) {
	t.seen[pid] = true
	if pid != t.in.PID || t.in.Name == "" {
		return
	}
	t.begin("M", "process_name", pid, 0, t.in.Timeline.From)
	t.field("args", `{"name":`+t.quote(t.in.Name)+`}`)
	t.end()
}

// totals writes those of a device's totals that are known and new, a counter each: viewers stack the values of one.
func (t *trace) totals(time uint64, totals *view.Totals) {
	for _, x := range []arg{{"allocated", totals.Allocated}, {"reserved", totals.Reserved}, {"device memory", totals.Used}} {
		c := counter{totals.PID, totals.Device, x.name}
		if last, ok := t.last[c]; x.value == event.Unknown || ok && last == x.value {
			continue
		}
		t.last[c] = x.value
		t.begin("C", totals.Device.String()+" "+x.name, totals.PID, 0, time)
		t.args(arg{"bytes", x.value})
		t.end()
	}
}

func (t *trace) alloc(time uint64, b *heap.Block, e *event.Event) {
	t.begin("i", t.in.Trace.SiteName(b), b.PID, e.TID, time)
	t.field("cat", t.quote(category(b)))
	t.field("s", `"t"`)
	t.block(b)
	t.end()
}

// category tells layers and devices apart.
func category(b *heap.Block) string { return "gputrace " + b.Layer.String() + " " + b.Device.String() }

func (t *trace) block(b *heap.Block) {
	t.args(arg{"bytes", b.Size}, arg{"requested", b.Requested}, arg{"address", b.Addr}, arg{"stream", b.Stream})
}

func (t *trace) outOfMemory(time uint64, e *event.Event) {
	t.begin("i", "out of memory", e.PID, e.TID, time)
	t.field("cat", t.quote("gputrace "+e.Layer.String()+" "+e.Device.String()))
	t.field("s", `"p"`)
	t.args(arg{"asked", e.Size}, arg{"allocated", e.Allocated}, arg{"reserved", e.Reserved})
	t.end()
}

// lifetimes writes the largest blocks, each as a row of its own: they overlap. One that is in use at the end ends there.
func (t *trace) lifetimes() {
	tl := t.in.Timeline
	for i := range tl.Lifetimes {
		l := &tl.Lifetimes[i]
		end := l.End
		if end == 0 {
			end = tl.To
		}
		begin := max(l.Block.Time, tl.From)
		id := t.id(i)
		for _, x := range []struct {
			phase string
			time  uint64
		}{{"b", begin}, {"e", max(end, begin)}} {
			t.begin(x.phase, t.in.Trace.SiteName(&l.Block), l.Block.PID, l.TID, x.time)
			t.field("cat", t.quote(category(&l.Block)))
			t.field("id", id)
			t.block(&l.Block)
			t.end()
		}
	}
}

// slices writes steps and phases.
func (t *trace) slices() {
	row := t.id("steps")
	for i := range t.in.Steps {
		s := &t.in.Steps[i]
		t.slice(slice{fmt.Sprintf("step %d", s.Number), "gputrace steps", row, t.in.PID, t.in.PID, s.From, s.To + 1},
			arg{"step", uint64(s.Number)})
	}
	for i := range t.in.Phases {
		s := &t.in.Phases[i]
		x := slice{string(s.Phase), "gputrace phases", t.id(fmt.Sprint("phases ", s.PID, " ", s.TID)), s.PID, s.TID, s.From, s.To}
		t.slice(x, arg{"allocations", s.Allocations}, arg{"bytes", s.Bytes})
	}
}

// slice is a named time in a row.
type slice struct {
	name, category, row string
	pid, tid            uint32
	from, to            uint64
}

func (t *trace) slice(x slice, args ...arg) {
	for _, end := range []struct {
		phase string
		time  uint64
	}{{"b", x.from}, {"e", x.to}} {
		t.begin(end.phase, x.name, x.pid, x.tid, end.time)
		t.field("cat", t.quote(x.category))
		t.field("id", x.row)
		if end.phase == "b" {
			t.args(args...)
		}
		t.end()
	}
}

// id is that of a row, different from those of other traces.
func (t *trace) id(row any) string {
	h := fnv.New64a()
	fmt.Fprint(h, t.in.Trace.First(), " ", t.in.PID, " ", row)
	return fmt.Sprintf("\"%#x\"", h.Sum64())
}
