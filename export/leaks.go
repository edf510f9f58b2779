// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recording"
)

// Leaks says whether memory grows from step to step in the source, which is replayed for it once.
func (s *Source) Leaks() (*leaks.Report, error) {
	if s.leaks != nil {
		return s.leaks, nil
	}
	return s.leaksWith()
}

// leaksWith is Leaks in a replay that visitors share, of whom there may be none. They see it also when the verdict is known.
func (s *Source) leaksWith(others ...*view.Visitor) (*leaks.Report, error) {
	if s.leaks != nil || s.Info.PID == 0 && len(others) > 0 {
		return s.leaks, s.replay(others...)
	}
	found, err := s.Steps()
	if err != nil {
		return nil, err
	}
	finder := leaks.NewFinder(s.Trace, found, leakOptions(s))
	if found.Source != "" {
		others = append(others, finder.Visitor())
	}
	if err := s.replay(others...); err != nil {
		return nil, err
	}
	s.leaks = finder.Report()
	return s.leaks, nil
}

// replay replays the source for visitors together; nil ones and no ones take none.
func (s *Source) replay(all ...*view.Visitor) error {
	if all = slices.DeleteFunc(all, func(v *view.Visitor) bool { return v == nil }); len(all) == 0 {
		return nil
	}
	if err := s.Trace.Replay(all...); err != nil {
		return exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return nil
}

// judged says whether a verdict belongs to what is shown: all of a recording.
func judged(in *Input) bool { return in.source != nil && in.Info.PID != 0 && in.Selection.AtEnd() }

// leaksAtEnd is the verdict on a recording of which all is shown; nil: there is none.
func leaksAtEnd(in *Input) (*leaks.Report, error) {
	if !judged(in) {
		return nil, nil
	}
	return in.source.Leaks()
}

// libraries are prefixes of Python files that are not the program's own.
func (s *Source) libraries() []string {
	out := slices.Clone(s.Info.Libraries)
	if s.End != nil {
		out = append(out, s.End.Libraries...)
	}
	return out
}

// leakOptions is what a recording says beside its events.
func leakOptions(in *Source) *leaks.Options {
	o := &leaks.Options{Library: in.libraries(), Earlier: leaks.Earlier(in.Trace)}
	driver, _ := in.driverAtEnd()
	o.Free = FreeOf(driver)
	if in.End == nil {
		return o
	}
	if in.End.Held != nil {
		o.HolderOf = func(b *heap.Block) string {
			held, _ := in.Trace.Holder(b)
			return held.Holder
		}
	}
	for _, h := range HeldTables(in.End) {
		if rows := leaks.Holders(h.Joined); h.Title == table.HeldNow {
			o.Holders = rows
		} else { // at the highest peak that was looked into
			o.Earlier = append([][]leaks.Holder{rows}, o.Earlier...)
		}
	}
	return o
}

// FreeMemory is the unused memory of each device when a recording ends, bytes, where that is known.
func FreeMemory(end *recording.End) map[event.Device]uint64 {
	return FreeOf(driverOf(end))
}

// FreeOf is what the driver says is in use by nobody, bytes, by device.
func FreeOf(driver []figures.DriverUse) map[event.Device]uint64 {
	out := map[event.Device]uint64{}
	for _, d := range whileInUse(driver) {
		free := figures.Sub(uint64(d.Total), uint64(d.All))
		if d.Device < 0 || free == event.Unknown || uint64(d.All) > uint64(d.Total) {
			continue
		}
		for _, kind := range []event.DeviceType{event.DeviceCUDA, event.DeviceHIP, event.DeviceXPU} {
			out[event.Device{Type: kind, Index: int8(d.Device)}] = free
		}
	}
	return out
}
