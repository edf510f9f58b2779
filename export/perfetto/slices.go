// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"fmt"

	"github.com/gputrace/gputrace/analysis/view"
)

// slice is a named time on a track.
type slice struct {
	name     string
	from, to uint64
	notes    map[string]uint64
}

// steps writes a slice for each step.
func (t *trace) steps() {
	if len(t.in.Steps) == 0 {
		return
	}
	track := t.named(t.in.PID, "steps", rankSteps)
	for i := range t.in.Steps {
		s := &t.in.Steps[i]
		t.slice(track, slice{fmt.Sprintf("step %d", s.Number), s.From, s.To + 1, map[string]uint64{"step": uint64(s.Number)}})
	}
}

// phases writes a slice for each time in which a thread allocates in one phase.
func (t *trace) phases() {
	var track *track
	var last *view.PhaseSpan
	for i := range t.in.Phases {
		s := &t.in.Phases[i]
		if last == nil || s.PID != last.PID || s.TID != last.TID {
			track = t.named(s.PID, fmt.Sprintf("phases of thread %d", s.TID), rankPhases)
		}
		last = s
		t.slice(track, slice{string(s.Phase), s.From, s.To, map[string]uint64{"allocations": s.Allocations, "bytes": s.Bytes}})
	}
}

// The order of a process's own rows.
const (
	rankSteps = iota
	rankPhases
)

// named makes a track of a process.
func (t *trace) named(pid uint32, name string, rank uint64) *track {
	process := t.process(pid)
	uuid := t.uuid("row ", process, " ", name)
	t.describe(uuid, func(m *message) {
		m.number(trackParent, process)
		m.text(trackName, name)
		m.number(trackRank, rank)
	})
	return &track{sequence: t.sequence(uuid)}
}

// slice writes the beginning and the end of a slice.
func (t *trace) slice(track *track, x slice) {
	s := track.sequence
	m := t.begin(s, x.from)
	at := m.open(packetTrackEvent)
	m.number(eventType, typeBegin)
	m.number(eventName, s.text(internedEventNames, x.name))
	for _, name := range []string{"step", "allocations", "bytes"} {
		if value, ok := x.notes[name]; ok {
			annotate(m, s, name, value)
		}
	}
	m.close(at)
	t.end(s)
	m = t.begin(s, x.to)
	at = m.open(packetTrackEvent)
	m.number(eventType, typeEnd)
	m.close(at)
	t.end(s)
}
