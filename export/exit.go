// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
)

// ending looks for the moment before a program freed everything because it ended.
type ending struct {
	ended bool
	seen  *answer.Follower
}

// early is an ending that does not know of steps, and takes the last allocation for it.
func (s *Source) early() *ending { return s.ending(&steps.Table{}) }

func (s *Source) ending(table *steps.Table) *ending {
	c := clockOf(s)
	return &ending{s.programEnded(), answer.NewFollower(table, max(c.attached, s.Trace.First()), c.end)}
}

func (e *ending) visitor() *view.Visitor {
	return &view.Visitor{Before: func(ev *event.Event, _ *heap.Heap) { e.seen.See(ev) }}
}

// exit is that moment, CLOCK_BOOTTIME nanoseconds; 0: there is none.
func (e *ending) exit() uint64 { return e.seen.Course(e.ended).Exit }

// exit is when the program began to free everything because it ended, and what was in use then, as the answer has it; 0: it did not, or
// there is no answer.
func (in *Input) exit() (time, bytes uint64) {
	if in.source == nil || in.source.answered == nil || in.source.answered.Exit == 0 {
		return 0, 0
	}
	return in.source.answered.Exit, in.source.answered.Now
}

// beforeExit moves a view of the end of a program that has ended to the moment before it freed everything, which is the end of every table
// and comparison; -0s is the end itself. What it held is named by the
// last reading of holders.
func (in *Input) beforeExit() error {
	s := in.source
	if s == nil || !s.programEnded() || in.Selection.To != 0 || in.Selection.Moment.Kind > moment.End {
		return nil
	}
	if s.answered == nil && s.exit == 0 {
		table, err := s.Steps()
		if err != nil {
			return err
		}
		e := s.ending(table)
		if err := s.replay(e.visitor()); err != nil {
			return err
		}
		s.exit = e.exit()
	}
	if s.exit == 0 {
		return nil
	}
	c := clockOf(s)
	in.Selection.Moment = moment.Moment{Kind: moment.SinceStart, Time: s.exit}
	in.Moment = fmt.Sprintf("before its end, %+.3f s", (time.Duration(s.exit) - time.Duration(c.attached)).Seconds())
	in.Joined = nil
	s.Trace.SetExit(s.exit, s.read())
	return nil
}

// mostOf is the part of a site's blocks that one thing must have held for newer ones to be taken for its own.
const mostOf = 0.75

// read is what held most blocks of sites when holders were last read.
func (s *Source) read() *view.Read {
	rows, calls := s.lastRead()
	of := map[view.SiteCall][]figures.HeldAt{} // of the last reading of each line
	add := func(rows []figures.HeldAt) {
		fresh := map[view.SiteCall]bool{}
		for _, r := range rows {
			if r.Holder == view.NoHolder || r.Holder == "" || r.Holder[0] == '<' { // mostly newer than the reading, or of C++ for the moment
				continue
			}
			at := view.SiteCall{Site: r.Site, Call: r.Call}
			if !fresh[at] {
				fresh[at], of[at] = true, nil
			}
			of[at] = append(of[at], r)
		}
	}
	add(append(rows, calls...))
	if held := s.Trace.Held(); len(held) > 0 { // of the lines that grow
		var grow []figures.HeldAt
		for _, r := range held[len(held)-1].Rows {
			grow = append(grow, figures.HeldAt{Site: r.Site, Holder: r.Holder, Bytes: r.Bytes})
		}
		add(grow)
	}
	out := &view.Read{}
	for at, rows := range of {
		out.Set(at, mostHeld(rows))
	}
	return out
}

// mostHeld returns what holds most of the bytes of rows.
func mostHeld(rows []figures.HeldAt) (out view.ReadHolder) {
	parts := map[string]uint64{}
	for i := range rows {
		r := &rows[i]
		out.Bytes, parts[r.Holder] = out.Bytes+r.Bytes, parts[r.Holder]+r.Bytes
	}
	for holder, part := range parts {
		if float64(part) >= mostOf*float64(out.Bytes) { // of one at most
			out.Holder = holder
		}
	}
	return out
}

// lastRead is the last reading of holders while the program ran; without one, the tables of the end.
func (s *Source) lastRead() (rows, calls []figures.HeldAt) {
	for _, r := range s.Trace.Readings() {
		if len(r.Held) > 0 {
			rows, calls = slices.Clone(r.Held), r.Calls
		}
	}
	if s.End != nil && rows == nil {
		for _, h := range HeldTables(s.End) {
			for _, r := range h.Joined.Rows {
				rows = append(rows, figures.HeldAt{Site: r.Site, Holder: r.Name, Bytes: r.Bytes})
			}
		}
	}
	return rows, calls
}
