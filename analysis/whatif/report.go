// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// Ask says what is asked of a recording.
type Ask struct {
	// Settings are replayed, beside those of the recording; nil: the usual ones, each alone.
	Settings []Settings
	// Device is the memory of the device, bytes; 0: that of the recording, where it is known.
	Device uint64
	// Fraction is of the device, for all settings; 0: none.
	Fraction float64
	// Outside is device memory that no event shows, bytes; event.Unknown: as it was at the end of the recording, 0 where that is not known.
	Outside uint64
	// PyTorch is the version of the recorded program; empty: not known.
	PyTorch string
	// Recorded are the settings of the recorded program; Expandable is found out.
	Recorded Settings
}

// Known is what a recording says of a device beside its events. Sizes are bytes.
type Known struct {
	Total   uint64 // 0: not known
	Outside uint64 // the context and other processes; event.Unknown
}

// Report is the replays of one stream.
type Report struct {
	*Stream
	Outside        uint64 // device memory that no event shows, as it was assumed, bytes
	OutsideUnknown bool   // it is not known, and 0 was assumed
	Check          Agreement
	Rows           []Row // the recorded settings first
}

// Row is one replay, with names.
type Row struct {
	*Result
	Step  int    // of the failure; 0: none failed, or it is before the first step, or there are none
	Site  string // of the failure: "train.py:88 main"
	Phase phases.Phase
}

// lateShare is the part of the recorded peak, one in so many, that must have been reserved when the recording began
// for a replay with the same peak to prove nothing: these segments are there in every replay, as the recorded
// settings had made them.
const lateShare = 2

// Unknown reports whether a replay of other settings proves nothing because the recording began too late.
func (r *Report) Unknown(row int) bool {
	recorded := r.Rows[0].Peak
	return row > 0 && r.Before > 0 && lateShare*r.Before >= recorded && r.Rows[row].Peak == recorded && r.Rows[row].Failed == nil
}

// Usual are the settings that are replayed when none are asked for, each alone. That of garbage collection needs a fraction, and is left
// out without one.
func Usual(fraction float64) []Settings {
	out := []Settings{{Expandable: true}, {MaxSplit: 128 << 20}, {MaxSplit: 512 << 20}, {Divisions: 4}, {Divisions: 8}}
	if fraction > 0 {
		out = append(out, Settings{GC: 0.8})
	}
	return out
}

// Find replays every stream of a trace. known says what the recording has of a device.
func Find(t *view.Trace, table *steps.Table, ask *Ask, known func(pid uint32, d event.Device, end *Stream) Known) ([]Report, error) {
	streams, err := NewStreams(t)
	if err != nil {
		return nil, err
	}
	var out []Report
	for _, s := range streams {
		out = append(out, s.report(t, table, ask, known(s.PID, s.Device, s)))
	}
	return out, nil
}

func (s *Stream) report(t *view.Trace, table *steps.Table, ask *Ask, k Known) Report {
	r := Report{Stream: s, Outside: ask.Outside}
	if r.Outside == event.Unknown {
		if r.Outside = k.Outside; k.Outside == event.Unknown {
			r.Outside, r.OutsideUnknown = 0, true
		}
	}
	recorded := ask.Recorded
	recorded.Expandable = recorded.Expandable || s.Expandable
	s.Rules = RulesOf(ask.PyTorch)
	r.Check = *s.Check(&recorded, nil)
	if !r.Check.Exact() { // PyTorch may have been built from another state of its source
		s.Rules = s.Rules.other()
		if other := s.Check(&recorded, nil); other.Exact() {
			r.Check = *other
		} else {
			s.Rules = s.Rules.other()
		}
	}
	settings := ask.Settings
	if settings == nil {
		settings = Usual(ask.Fraction)
	}
	device := ask.Device
	if device == 0 {
		device = k.Total
	}
	for _, x := range append([]Settings{recorded}, settings...) {
		x.Device, x.Fraction = device, ask.Fraction
		row := Row{Result: s.Run(&x, &Options{Outside: r.Outside})}
		if f := row.Failed; f != nil {
			row.Step, row.Phase = table.At(f.Time), t.Phase(f.Stack)
			row.Site = s.Line(t, f.Stack)
		}
		r.Rows = append(r.Rows, row)
	}
	return r
}

// Last is what the caching allocator had reserved at the end, and what of the device others had then, bytes; event.Unknown.
func (s *Stream) Last() (reserved, outside uint64) {
	reserved = event.Unknown
	for i := len(s.ops) - 1; i >= 0; i-- {
		if s.ops[i].reserved != event.Unknown {
			return s.ops[i].reserved, s.ops[i].outside
		}
	}
	return reserved, 0
}

// segmentStep is what sizes of segments are multiples of (kSmallBuffer, kRoundLarge of CUDACachingAllocator.cpp), bytes.
const segmentStep = 2 << 20

// asked is the last settings that were asked for, of the usual ones the recorded ones.
func (r *Report) asked() Settings {
	if len(r.Rows) > 2 {
		return r.Rows[0].Settings
	}
	return r.Rows[len(r.Rows)-1].Settings
}

// Need is the least memory, of the caching allocator and of other libraries, with which no request fails in a
// replay of the settings that were asked for, of the usual ones the recorded ones: in segments' steps, bytes. It is
// less than the peak where returning the cache helps.
func (r *Report) Need() uint64 {
	s := r.asked()
	s.Device, s.Fraction = 0, 0
	enough, fails := (r.Run(&s, nil).Peak+r.PeakOutside)/segmentStep+1, uint64(0)
	for enough-fails > 1 {
		middle := (enough + fails) / 2
		s.Device = middle * segmentStep
		if r.Run(&s, nil).Failed == nil {
			enough = middle
		} else {
			fails = middle
		}
	}
	return enough * segmentStep
}

// Room is what the process may use, bytes; 0: not known.
func (r *Report) Room() uint64 { return r.Rows[0].Settings.Room(r.Outside, r.PeakOutside) }
