// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/fragmentation"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/internal/exit"
)

// FragmentsOptions are of which moment and request the fragmentation is.
type FragmentsOptions struct {
	At      moment.Moment // unset: the end
	Request uint64        // bytes; 0: of a moment at which a request failed, that request; else none
	JSON    bool
	Top     int // rows of each table; 0: the default
	Width   int // of the screen that the text is for, characters; 0: it is not known
}

// WriteFragments writes how fragmented each caching allocator is at a moment, by what, and what would help. stop is called before
// anything is written. A source without an allocator is exit.Nothing.
func (s *Source) WriteFragments(w io.Writer, o *FragmentsOptions, stop func()) error {
	c := clockOf(s)
	selection, err := c.find(&Window{At: o.At})
	if err != nil {
		return err
	}
	found, err := s.fragmentation(selection, o.Request)
	if err != nil {
		return err
	}
	steps, err := s.Steps()
	if err != nil {
		return err
	}
	churn, err := fragments.ChurnOf(s.Trace, steps)
	if err != nil {
		return exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	stop()
	if o.JSON {
		return json.WriteFragments(w, &json.FragmentsInput{Devices: found, Churn: churn, Text: fragmentation.Sentence})
	}
	return fragmentation.Write(w, &fragmentation.Input{Devices: found, Churn: churn, Began: c.attached, Top: o.Top, Width: o.Width})
}

// fragmentation is that of each caching allocator. request 0: that which failed at the moment, if one did.
func (s *Source) fragmentation(selection view.Selection, request uint64) ([]whatif.Fragmentation, error) {
	maps, err := fragments.At(s.Trace, selection)
	if err == nil && len(maps) == 0 {
		return nil, exit.With(exit.Nothing, fmt.Errorf("%s: no caching allocator of PyTorch in it%s", s.Path, s.insteadOfFragments()))
	}
	if err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	replays, err := s.WhatIf(&whatif.Ask{Outside: event.Unknown})
	if err != nil && exit.Code(err) != exit.Nothing {
		return nil, err
	}
	names := fragments.NamesOf(s.Trace)
	var out []whatif.Fragmentation
	for _, m := range maps {
		m.SetPrivate(s.Trace.Readings())
		f := whatif.Fragmentation{Report: fragments.New(m, s.requestAt(m, request)), Unknown: m.Unknown,
			Workspaces: fragments.Workspaces(s.Trace, m)}
		f.Pins = f.Report.Pins(m, names, nil)
		for i := range replays {
			if r := &replays[i]; r.PID == m.PID && r.Device == m.Device && r.IsTrusted() {
				f.Replays = r
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// insteadOfFragments says how to see the fragmentation of TensorFlow's and JAX's allocators, whose regions are in no recording.
func (s *Source) insteadOfFragments() string {
	for _, a := range s.Trace.End().Snapshot.Accounts {
		if a.Device.Allocator() == allocator.BFC {
			return "\n  regions of TensorFlow and JAX are not recorded; while the program runs: gputrace dump -p PID"
		}
	}
	return ""
}

// requestAt returns the request to look at: of the given size, or the one that failed at the moment of the map.
func (s *Source) requestAt(m *fragments.Map, bytes uint64) fragments.Request {
	failed, _ := s.Trace.Refusals()
	for i := range failed {
		if e := &failed[i].Event; bytes == 0 && failed[i].Reported && e.Time == m.Time && e.PID == m.PID && e.Device == m.Device {
			bytes = e.Size
		}
	}
	if m.Device.Allocator().Simulated() {
		return fragments.Request{Bytes: bytes, Stream: m.Stream()}
	}
	if bytes == 0 { // TensorFlow and JAX have most of the device in one region: its largest free piece is of use
		bytes = m.Largest()
	}
	return fragments.Request{Bytes: bytes, Stream: event.Unknown, Any: true}
}
