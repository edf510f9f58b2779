// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"fmt"
	"strings"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/kineto"
)

// overlapping is the name of the tracks beside a thread's own for slices that do not nest in it.
const overlapping = "overlapping"

// profiles is the state of writing the traces of torch.profiler.
type profiles struct {
	threads   map[threadKey]string    // names of threads
	processes map[uint32]string       // names of processes
	described map[uint64]bool         // tracks of groups and rows
	beside    map[threadKey]*sequence // gputrace's events on the tracks of threads
	during    []span                  // times of the traces of the recorded process
}

// span is a range of time, CLOCK_BOOTTIME nanoseconds.
type span struct{ from, to uint64 }

// learn notes the names that the traces have, before the tracks are written, and their times.
func (t *trace) learn() {
	p := &t.profiles
	*p = profiles{
		threads: map[threadKey]string{}, processes: map[uint32]string{}, described: map[uint64]bool{}, beside: map[threadKey]*sequence{},
	}
	for _, k := range t.in.Profiles {
		recorded := false
		for _, row := range k.Rows {
			pid := uint32(row.Process.PID)
			if pid == 0 {
				continue
			}
			p.processes[pid] = row.Process.Name
			if row.TID != 0 {
				p.threads[threadKey{pid, uint32(row.TID)}] = row.Name
				recorded = recorded || pid == t.in.PID
			}
		}
		if recorded {
			p.during = append(p.during, span{t.boot(k.From), t.boot(k.To)})
		}
	}
}

// boot converts a wall clock time, Unix nanoseconds, to the clock of the events. Times before the start of the machine become 0.
func (t *trace) boot(unix int64) uint64 {
	return uint64(max(0, unix-t.in.Started.UnixNano()+int64(t.in.StartedBoot)))
}

// beside returns the sequence for gputrace's events on the track of a thread; nil: no profiler watched the recorded process then.
func (t *trace) beside(pid, tid uint32, time uint64) *sequence {
	key := threadKey{pid, tid}
	if pid != t.in.PID || tid == 0 {
		return nil
	}
	for _, s := range t.profiles.during {
		if time < s.from || time > s.to {
			continue
		}
		if t.profiles.beside[key] == nil {
			t.profiles.beside[key] = t.sequence(t.threadTrack(pid, tid))
		}
		return t.profiles.beside[key]
	}
	return nil
}

// profile writes the trace number n of torch.profiler.
func (t *trace) profile(n int, k *kineto.Trace) {
	var owner uint32 // devices of different processes have tracks of their own
	for _, row := range k.Rows {
		if owner == 0 {
			owner = uint32(row.Process.PID)
		}
	}
	for _, row := range k.Rows {
		r := &profileRow{
			trace: t, file: n, from: k, row: row, owner: owner, lanes: make([]profileLane, row.Lanes), counters: map[string]*sequence{},
		}
		for i := range row.Events {
			r.event(&row.Events[i])
		}
		for i := range r.lanes {
			r.close(&r.lanes[i], event.Unknown)
		}
	}
}

// profileRow writes one row of a trace.
type profileRow struct {
	*trace
	file     int // number of the trace
	from     *kineto.Trace
	row      *kineto.Row
	owner    uint32
	lanes    []profileLane
	counters map[string]*sequence
}

// profileLane is a track for slices that nest.
type profileLane struct {
	*sequence
	open []uint64 // ends of the open slices, the innermost last
}

// clip returns the times of an event on the clock of the events, cut to the range that is shown; false: it is outside.
func (r *profileRow) clip(e *kineto.Event) (from, to uint64, ok bool) {
	from, to = r.boot(e.Time), r.boot(e.End())
	first, last := r.in.ProfileFrom, r.in.ProfileTo
	if last == 0 {
		return from, to, true
	}
	return max(from, first), min(to, last), to >= first && from <= last
}

func (r *profileRow) event(e *kineto.Event) {
	from, to, ok := r.clip(e)
	if !ok {
		return
	}
	if e.Kind == kineto.Counter {
		r.counter(e, from)
		return
	}
	lane := &r.lanes[e.Lane]
	if lane.sequence == nil {
		lane.sequence = r.sequence(r.lane(int(e.Lane)))
	}
	if e.Kind == kineto.Slice {
		r.close(lane, from)
		lane.open = append(lane.open, to)
		r.write(lane.sequence, e, from, typeBegin)
		return
	}
	if from > 0 {
		r.close(lane, from-1) // an instant at the end of a slice is in it
	}
	r.write(lane.sequence, e, from, typeInstant)
}

// close ends the slices of a lane that end up to a time.
func (r *profileRow) close(lane *profileLane, time uint64) {
	for n := len(lane.open); n > 0 && lane.open[n-1] <= time; n-- {
		m := r.begin(lane.sequence, lane.open[n-1])
		at := m.open(packetTrackEvent)
		m.number(eventType, typeEnd)
		m.close(at)
		r.end(lane.sequence)
		lane.open = lane.open[:n-1]
	}
}

func (r *profileRow) write(s *sequence, e *kineto.Event, time, kind uint64) {
	m := r.begin(s, time)
	at := m.open(packetTrackEvent)
	m.number(eventType, kind)
	m.number(eventName, s.text(internedEventNames, r.from.Name(e)))
	if category := r.from.Category(e); category != "" {
		m.number(eventCategory, s.text(internedCategories, category))
	}
	for _, f := range r.from.Flows(e) {
		r.flow(m, &f)
	}
	e.Args(func(name string, value any) { annotateValue(m, s, name, value) })
	m.close(at)
	r.end(s)
}

// flow adds an event's part in a flow. Perfetto's flows have one end and Kineto's many, such as all kernels of a CUDA graph: each end is a
// flow of its own, which begins at the same event.
func (r *profileRow) flow(m *message, f *kineto.Flow) {
	id := func(end int) uint64 { return r.uuid("flow ", r.file, " ", f.Key, " ", end) }
	if f.Point == kineto.FlowEnd {
		m.fixed(eventFlowEnd, id(f.End))
		return
	}
	for end := range max(1, f.Ends) {
		m.fixed(eventFlow, id(end))
	}
}

// annotateValue adds an argument of an event.
func annotateValue(m *message, s *sequence, name string, value any) {
	at := m.open(eventAnnotation)
	m.number(annotationName, s.text(internedAnnotationNames, name))
	switch v := value.(type) {
	case string:
		m.text(annotationText, v)
	case kineto.JSON:
		m.text(annotationText, string(v))
	case int64:
		m.number(annotationInt, uint64(v))
	case uint64:
		m.number(annotationUint, v)
	case float64:
		m.double(annotationDouble, v)
	case bool:
		m.number(annotationBool, map[bool]uint64{true: 1}[v])
	}
	m.close(at)
}

// counter writes the values of a counter, each on a track of its own.
func (r *profileRow) counter(e *kineto.Event, time uint64) {
	e.Args(func(series string, value any) {
		var number float64
		switch v := value.(type) {
		case int64:
			number = float64(v)
		case uint64:
			number = float64(v)
		case float64:
			number = v
		default:
			return
		}
		name := strings.TrimSpace(r.from.Name(e) + " " + series)
		s := r.counters[name]
		if s == nil {
			s = r.sequence(r.child(r.group(), "counter "+r.row.ID, name, func(m *message) { m.close(m.open(trackCounter)) }))
			r.counters[name] = s
		}
		m := r.begin(s, time)
		at := m.open(packetTrackEvent)
		m.number(eventType, typeCounter)
		m.double(eventDoubleValue, number)
		m.close(at)
		r.end(s)
	})
}

// lane returns the track of a lane. The lanes of a stream have one name, by which Perfetto shows them as one row.
func (r *profileRow) lane(n int) uint64 {
	kind := fmt.Sprint("lane ", n, " ", r.row.ID)
	if r.row.TID == 0 {
		return r.child(r.group(), kind, r.row.Name, nil)
	}
	pid, tid := uint32(r.row.Process.PID), uint32(r.row.TID)
	r.thread(pid, tid)
	if n == 0 {
		return r.threadTrack(pid, tid)
	}
	return r.child(r.threadTrack(pid, tid), kind, overlapping, nil)
}

// group returns the track of the row's process, device or group.
func (r *profileRow) group() uint64 {
	p := r.row.Process
	if p.PID != 0 {
		return r.process(uint32(p.PID))
	}
	uuid := r.uuid("profiler ", r.owner, " ", p.Device, " ", p.Name)
	if !r.profiles.described[uuid] {
		r.profiles.described[uuid] = true
		r.describe(uuid, func(m *message) {
			m.text(trackName, p.Name)
			m.number(trackChildOrdering, orderExplicit)
		})
	}
	return uuid
}

// child returns a track below another one, in the place of its row; kind distinguishes tracks of one name.
func (r *profileRow) child(parent uint64, kind, name string, fill func(m *message)) uint64 {
	uuid := r.uuid(kind, " ", parent, " ", name)
	if r.profiles.described[uuid] {
		return uuid
	}
	r.profiles.described[uuid] = true
	r.describe(uuid, func(m *message) {
		m.number(trackParent, parent)
		m.text(trackName, name)
		m.number(trackRank, uint64(r.row.Rank))
		if fill != nil {
			fill(m)
		}
	})
	return uuid
}
