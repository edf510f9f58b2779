// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder/passing"
	"github.com/gputrace/gputrace/recording"
)

// recordedHeap is the live set of a process, and the recording of all changes to it, whose replay yields the same live set.
type recordedHeap struct {
	*heap.Heap
	writer *recording.Writer // nil: no recording
	warn   func(error)
	failed func(error)          // called with an error of the recording, which ends it; nil: the writer keeps the error until the end
	before func(e *event.Event) // called before each event is applied; nil: not called

	passing passing.Blocks
}

func newRecordedHeap(warn func(error)) *recordedHeap {
	h := &recordedHeap{Heap: heap.New(), warn: warn}
	h.Follow(&h.passing)
	return h
}

// take applies events and writes them to the recording. It is also called without events.
func (h *recordedHeap) take(events []event.Event) {
	h.ApplyEach(events, h.before)
	if h.writer != nil {
		h.check(h.writer.Write(events))
	}
}

// checkpoint writes a checkpoint when it is due. It must not be called while the heap is watched, because a checkpoint
// does not contain the log.
func (h *recordedHeap) checkpoint() {
	if h.writer != nil && h.writer.Due() {
		h.check(h.writer.Checkpoint(h.State(), h.Stacks()))
	}
}

// check reports an error of the recording. The live set continues.
func (h *recordedHeap) check(err error) {
	if err == nil {
		return
	}
	h.warn(err)
	if h.failed != nil && h.writer != nil {
		h.writer = nil
		h.failed(err)
	}
}

func (h *recordedHeap) mark(m event.Annotation) {
	if h.writer != nil {
		h.check(h.writer.Annotate(&m))
	}
}

// Watch calls Heap.Watch and records it.
func (h *recordedHeap) Watch(pid uint32) {
	h.Heap.Watch(pid)
	h.mark(event.Annotation{Kind: event.AnnotationWatch, PID: pid})
}

// Unwatch calls Heap.Unwatch and records it.
func (h *recordedHeap) Unwatch(pid uint32) {
	h.Heap.Unwatch(pid)
	h.mark(event.Annotation{Kind: event.AnnotationUnwatch, PID: pid})
}

// Lose calls Heap.RecordLoss and records it.
func (h *recordedHeap) Lose(pid uint32, loss event.Loss) {
	h.Heap.RecordLoss(pid, loss)
	h.mark(event.Annotation{Kind: event.AnnotationLost, PID: pid, Loss: loss})
}

// Reconcile calls Heap.Reconcile and records it if it changed something.
func (h *recordedHeap) Reconcile(o event.Observation) (heap.Result, error) {
	r, err := h.Heap.Reconcile(o)
	if err == nil {
		h.mark(event.Annotation{Kind: event.AnnotationObserved, PID: o.PID, Observation: &o})
	}
	return r, err
}

// SetBaseline calls Heap.SetBaseline and records it.
func (h *recordedHeap) SetBaseline(pid uint32, device event.Device, allocated, reserved uint64) {
	h.Heap.SetBaseline(pid, device, allocated, reserved)
	h.mark(event.Annotation{Kind: event.AnnotationBaseline, PID: pid, Device: device, Allocated: allocated, Reserved: reserved})
}
