// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"maps"
	"time"

	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recording"
)

// Divider is a Keeper that divides the recording of a process into segments. Each segment is a recording of its own that begins with the
// live set, so that earlier segments can be removed. Keep is not called. All methods are called in the goroutine of Run.
type Divider interface {
	Keeper
	// Due reports whether the current segment should end, or whether one should begin. It is called after each read of events, so it must
	// be fast. written is the size of the current segment in bytes; negative: the process is not recorded.
	Due(p *Process, written int64) bool
	// Divide completes the current segment, if there is one, and begins the next. Without a writer the process is traced and not
	// recorded, until Due asks for the next segment. The error is a warning.
	Divide(p *Process, s *Segment) (*recording.Writer, error)
	// Failed ends a segment that could not be written. Its writer has nothing more to write.
	Failed(p *Process, err error)
}

// Segment is what is needed to end a segment and to begin the next.
type Segment struct {
	End    *recording.End // of the current segment; nil: the process is not recorded
	Info   *recording.Info
	Before *recording.Before
	Stack  func(event.StackID) *event.Stack
}

// divide begins a new segment when it is due. It must not be called while the heap is watched, as recordedHeap.checkpoint.
func (p *Process) divide() {
	d, ok := p.options.Keeper.(Divider)
	if !ok {
		return
	}
	written := int64(-1)
	if p.heap.writer != nil {
		written = p.heap.writer.Size()
	}
	if !d.Due(p, written) {
		return
	}
	totals := p.heap.Totals()
	info := *p.info
	info.Labels = p.Labels()
	s := &Segment{
		Info: &info, Stack: p.joiner.Stack,
		Before: &recording.Before{State: p.heap.State(), Stacks: p.heap.Stacks(), Time: totals.Time, Events: totals.Events},
	}
	if p.heap.writer != nil {
		s.End = p.segmentEnd()
	}
	w, err := d.Divide(p, s)
	if p.heap.writer = w; err != nil {
		p.observer.Warning(err)
	}
}

// segmentEnd returns the trailer of a segment of a recording that goes on.
func (p *Process) segmentEnd() *recording.End {
	lost := p.target.Lost()
	end := &recording.End{
		Reason: recording.ReasonStopped, Duration: time.Since(p.start), Lost: &lost, StackRecordsLost: p.target.Stacks().Lost,
		StacksOverLimit: p.target.OverLimit(), Libraries: p.torchFolders(), Garbage: p.scans.garbage.Figures(),
		NoHolders: p.scans.noPython(), Sources: trailer.Sources(p.View()),
	}
	end.Cost = p.cost()
	if p.growth != nil {
		end.HolderFacts = maps.Clone(p.growth.facts)
	}
	if c := p.reconciler.Report(); c != nil {
		end.Checks = &figures.Checks{Made: c.Made, Differences: c.Differences, Failed: c.Failed}
	}
	return end
}
