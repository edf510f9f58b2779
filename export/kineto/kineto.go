// SPDX-License-Identifier: Apache-2.0

// Package kineto reads the Chrome traces that PyTorch's profiler (Kineto) exports, so that a timeline can show them on the clock of a
// recording. Kineto writes its events thread by thread and not by time; the package sorts them, and divides slices that overlap without
// nesting into lanes. libkineto/src/output_json.cpp defines the format; it is read as PyTorch 1.8.1 and later write it.
package kineto

// Trace is the content of one file.
type Trace struct {
	Path     string
	Rows     []*Row // by process, then in Kineto's order; rows without events are left out
	Events   int    // number of events in Rows
	From, To int64  // first and last moment of an event, Unix nanoseconds; 0 without events
	// LeftOut counts events that are not in Rows, by the reason.
	LeftOut map[string]int

	names []string // of events and categories
	flows []flow
}

// Process is what Kineto calls a process: one of the operating system, a device, or a group of rows with a name.
type Process struct {
	PID    int64  // process ID; 0: a device or a group
	Name   string // name for people; not empty for a device or a group
	Device bool   // a device, such as a GPU
}

// Row is the events of one thread, one stream of a device, or one named row.
type Row struct {
	Process *Process
	TID     int64  // thread ID; 0: not a thread of the operating system
	Name    string // name for people; empty for a thread that Kineto does not name
	ID      string // identifies the row in its file
	Rank    int    // position among the rows of the process, from 0
	Lanes   int    // number of lanes that the slices need, at least 1
	Events  []Event

	key     rowKey
	sort    int64 // Kineto's sort index
	gpu     bool  // has events of a GPU
	unbound []unbound
}

// Kind is the kind of an event.
type Kind uint8

// The kinds of events.
const (
	Slice   Kind = iota // lasts from Time for Duration
	Instant             // happens at Time
	Counter             // sets the series in its arguments at Time
)

// Event is an event of a row. Events of a row are in order of time, an outer slice before the slices in it.
type Event struct {
	Time, Duration int64 // Unix nanoseconds; nanoseconds
	Kind           Kind
	Lane           uint16 // slices of one lane nest

	name, category uint32 // indexes of names
	flow           int32  // index of the first flow, from 1; 0: none
	args           []byte // JSON object; nil: none
}

// Name returns the name of an event.
func (t *Trace) Name(e *Event) string { return t.names[e.name] }

// Category returns the category of an event, such as cpu_op; empty: it has none.
func (t *Trace) Category(e *Event) string { return t.names[e.category] }

// End returns the moment at which the event ends.
func (e *Event) End() int64 { return e.Time + e.Duration }

// FlowPoint is the place of an event in a flow, the arrow between events that Kineto draws.
type FlowPoint uint8

// The places in a flow.
const (
	FlowStart FlowPoint = iota
	FlowStep
	FlowEnd
)

// Flow is an event's part in one flow.
type Flow struct {
	Key   string // identifies the flow in its file
	Point FlowPoint
	End   int // FlowEnd: the number of the end, from 0
	Ends  int // number of ends of the flow
}

// Flows returns the flows of an event. Kineto also writes ends of flows whose start was not recorded; they are left out.
func (t *Trace) Flows(e *Event) []Flow {
	var out []Flow
	for i := e.flow; i != 0; i = t.flows[i-1].next {
		f := &t.flows[i-1]
		if !f.of.started {
			continue
		}
		out = append(out, Flow{Key: f.of.key, Point: f.point, End: f.end, Ends: f.of.ends})
	}
	return out
}

// flow is one point of a flow.
type flow struct {
	of    *arrow
	point FlowPoint
	end   int
	next  int32 // next flow of the same event, from 1; 0: none
}

// arrow is a flow with all its points.
type arrow struct {
	key     string
	started bool // has a start; without one it is not shown
	ends    int
}

// unbound is a point of a flow that waits for its slice.
type unbound struct {
	time int64
	flow int32 // index in Trace.flows, from 1
}
