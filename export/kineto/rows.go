// SPDX-License-Identifier: Apache-2.0

package kineto

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// maxLanes limits the lanes of a row; slices that need another lane are left out, because placing a slice looks at every lane.
const maxLanes = 64

// Reasons for what is left out.
const (
	leftOutOverlap = "slices that overlap with more than 64 others of their track"
	leftOutFlow    = "arrows with no slice at one end"
)

// finish completes the rows when all events are known: metadata follow the events to which they belong.
func (p *parser) finish() {
	t := p.trace
	processes := map[Process]*Process{}
	for key, row := range p.rows {
		if len(row.Events) == 0 {
			t.LeftOut[leftOutFlow] += len(row.unbound)
			continue
		}
		process := p.process(key.pid, row.gpu)
		if processes[process] == nil {
			processes[process] = &process
		}
		row.Process = processes[process]
		row.identify()
		for i := range row.Events {
			row.Events[i].Time = p.unix(row.Events[i].Time)
		}
		for i := range row.unbound {
			row.unbound[i].time = p.unix(row.unbound[i].time)
		}
		t.Rows = append(t.Rows, row)
	}
	slices.SortFunc(t.Rows, compareRows)
	for i, row := range t.Rows {
		if i > 0 && t.Rows[i-1].Process == row.Process {
			row.Rank = t.Rows[i-1].Rank + 1
		}
		row.arrange(t)
		t.Events += len(row.Events)
	}
	t.setRange()
	maps.DeleteFunc(t.LeftOut, func(_ string, n int) bool { return n == 0 })
}

// unix returns a time of the trace as Unix nanoseconds.
func (p *parser) unix(time int64) int64 {
	base := max(-maxTime, min(p.base, maxTime))
	return max(-maxTime, min(base+time, maxTime))
}

// process returns the process of a row. In a container, a process can have the number of a device: what runs on a GPU tells them apart.
func (p *parser) process(pid id, gpu bool) Process {
	n := p.processes[pid]
	if n == nil {
		n = &named{}
	}
	device := n.label != "" && !n.cpu || n.label != "" && gpu
	switch {
	case !device && !gpu && pid.text == "" && pid.number > 0 && pid.number <= math.MaxInt32:
		return Process{PID: pid.number, Name: n.name}
	case n.label != "" && n.name != "":
		return Process{Name: n.label + " (" + n.name + ")", Device: true}
	}
	// Kineto puts the end of its recording into a process with an empty name.
	return Process{Name: cmp.Or(n.label, n.name, pid.name(), "profiler"), Device: device || gpu}
}

// identify sets the names of the row.
func (r *Row) identify() {
	r.ID = r.key.pid.name() + " " + r.key.tid.name()
	if tid := r.key.tid; r.Process.PID != 0 && tid.text == "" && tid.number > 0 && tid.number <= math.MaxInt32 {
		r.TID = tid.number
		return
	}
	r.Name = cmp.Or(r.Name, r.key.tid.name(), "profiler")
}

func compareRows(x, y *Row) int {
	return cmp.Or(
		cmp.Compare(x.Process.PID, y.Process.PID), cmp.Compare(x.Process.Name, y.Process.Name), compareDevice(x.Process, y.Process),
		cmp.Compare(x.sort, y.sort), cmp.Compare(x.key.tid.number, y.key.tid.number), cmp.Compare(x.key.tid.text, y.key.tid.text),
		cmp.Compare(x.key.pid.number, y.key.pid.number), cmp.Compare(x.key.pid.text, y.key.pid.text),
	)
}

func compareDevice(x, y *Process) int {
	switch {
	case x.Device == y.Device:
		return 0
	case y.Device:
		return -1
	}
	return 1
}

// arrange sorts the events of a row, divides slices into lanes and finds the slices of the flows.
func (r *Row) arrange(t *Trace) {
	slices.SortStableFunc(r.Events, func(x, y Event) int {
		return cmp.Or(cmp.Compare(x.Time, y.Time), cmp.Compare(y.Duration, x.Duration))
	})
	slices.SortStableFunc(r.unbound, func(x, y unbound) int { return cmp.Compare(x.time, y.time) })
	var lanes [][]int // open slices of each lane, as indexes of events
	next := 0
	rest := r.Events[:0]
	for _, e := range r.Events {
		next = r.bindBefore(t, lanes, next, e.Time)
		if e.Kind == Slice {
			n := place(&lanes, rest, &e)
			if n == maxLanes {
				t.LeftOut[leftOutOverlap]++
				continue
			}
			e.Lane, r.Lanes = uint16(n), max(r.Lanes, n+1)
			lanes[n] = append(lanes[n], len(rest))
		}
		rest = append(rest, e)
	}
	r.Events = rest
	r.bindBefore(t, lanes, next, math.MaxInt64)
	r.unbound = nil
}

// place returns the first lane in which a slice nests. It ends the slices there that are over.
func place(lanes *[][]int, events []Event, e *Event) int {
	for n, open := range *lanes {
		for len(open) > 0 && events[open[len(open)-1]].End() <= e.Time {
			open = open[:len(open)-1]
		}
		(*lanes)[n] = open
		if len(open) == 0 || events[open[len(open)-1]].End() >= e.End() {
			return n
		}
	}
	if len(*lanes) < maxLanes {
		*lanes = append(*lanes, nil)
		return len(*lanes) - 1
	}
	return maxLanes
}

// bindBefore binds the flows earlier than a time, from index next on, to the innermost slices around them, and returns the next index.
func (r *Row) bindBefore(t *Trace, lanes [][]int, next int, before int64) int {
	for ; next < len(r.unbound) && r.unbound[next].time < before; next++ {
		u := r.unbound[next]
		if e := r.around(lanes, u.time); e != nil {
			t.bind(e, u.flow)
			continue
		}
		t.LeftOut[leftOutFlow]++
	}
	return next
}

// around returns the open slice that began last and has not ended at a time, or nil.
func (r *Row) around(lanes [][]int, time int64) *Event {
	best := -1
	for _, open := range lanes {
		for i := len(open) - 1; i >= 0; i-- {
			if r.Events[open[i]].End() >= time {
				best = max(best, open[i])
				break
			}
		}
	}
	if best < 0 {
		return nil
	}
	return &r.Events[best]
}

// setRange sets the range of time of the trace. The instants that mark the recording's window count too.
func (t *Trace) setRange() {
	for i, row := range t.Rows {
		for j := range row.Events {
			e := &row.Events[j]
			if i == 0 && j == 0 {
				t.From, t.To = e.Time, e.End()
			}
			t.From, t.To = min(t.From, e.Time), max(t.To, e.End())
		}
	}
}
