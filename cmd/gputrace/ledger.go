package main

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// ledger is the live set of a session, and the recording of all that it is told: whoever replays that has the same live set.
type ledger struct {
	*heap.Heap
	writer *recording.Writer // nil: nothing is recorded
	warn   func(error)
}

// take applies events, and gives the recording its turn: also without events.
func (l *ledger) take(events []event.Event) {
	l.ApplyAll(events)
	if l.writer != nil {
		l.told(l.writer.Write(events))
	}
}

// checkpoint makes one when it is time. The heap must not be watched: that is not in its state.
func (l *ledger) checkpoint() {
	if l.writer != nil && l.writer.Due() {
		l.told(l.writer.Checkpoint(l.State(), l.Stacks()))
	}
}

func (l *ledger) told(err error) {
	if err != nil {
		l.warn(err)
	}
}

func (l *ledger) mark(m event.Annotation) {
	if l.writer != nil {
		l.told(l.writer.Annotate(&m))
	}
}

// Watch is Heap.Watch, recorded.
func (l *ledger) Watch(pid uint32) {
	l.Heap.Watch(pid)
	l.mark(event.Annotation{Kind: event.AnnotationWatch, PID: pid})
}

// Unwatch is Heap.Unwatch, recorded.
func (l *ledger) Unwatch(pid uint32) {
	l.Heap.Unwatch(pid)
	l.mark(event.Annotation{Kind: event.AnnotationUnwatch, PID: pid})
}

// Lose is Heap.Lose, recorded.
func (l *ledger) Lose(pid uint32, loss event.Loss) {
	l.Heap.RecordLoss(pid, loss)
	l.mark(event.Annotation{Kind: event.AnnotationLost, PID: pid, Loss: loss})
}

// Reconcile is Heap.Reconcile, recorded if it changed something.
func (l *ledger) Reconcile(o event.Observation) (heap.Result, error) {
	r, err := l.Heap.Reconcile(o)
	if err == nil {
		l.mark(event.Annotation{Kind: event.AnnotationObserved, PID: o.PID, Observation: &o})
	}
	return r, err
}

// SetBaseline is Heap.SetBaseline, recorded.
func (l *ledger) SetBaseline(pid uint32, device event.Device, allocated, reserved uint64) {
	l.Heap.SetBaseline(pid, device, allocated, reserved)
	l.mark(event.Annotation{Kind: event.AnnotationBaseline, PID: pid, Device: device, Allocated: allocated, Reserved: reserved})
}
