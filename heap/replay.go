// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"errors"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

// replayBatch is the number of events that are read from a recording at once.
const replayBatch = 8192

// Annotate replays one annotation of a recording. A checkpoint fills an empty heap; a heap that has events already contains it.
func (h *Heap) Annotate(m *event.Annotation) error {
	switch m.Kind {
	case event.AnnotationWatch:
		h.Watch(m.PID)
	case event.AnnotationUnwatch:
		h.Unwatch(m.PID)
	case event.AnnotationBaseline:
		h.SetBaseline(m.PID, m.Device, m.Allocated, m.Reserved)
	case event.AnnotationFromStart:
		h.FromStart(m.PID)
	case event.AnnotationLost:
		h.RecordLoss(m.PID, m.Loss)
	case event.AnnotationObserved:
		_, err := h.Reconcile(*m.Observation)
		return err
	case event.AnnotationCheckpoint:
		if h.events > 0 {
			return nil
		}
		return h.SetState(m.State)
	}
	return nil
}

// Replay applies the events and annotations of a recording to an empty heap. It returns the recording's error, except
// io.EOF, or an error that names the annotation that could not be replayed; everything before it was applied.
func (h *Heap) Replay(r event.Replayable) error { return h.Walk(r, Walker{}) }

// Walker has the functions that Walk calls. Each may be nil; its argument is valid only during the call.
type Walker struct {
	Before    func(e *event.Event) bool // before an event is applied; false ends the replay
	After     func(e *event.Event)      // after an event was applied
	Annotated func(m *event.Annotation) // after an annotation was replayed
}

// Walk is Replay with calls to w for each event and annotation.
func (h *Heap) Walk(r event.Replayable, w Walker) error {
	buf := make([]event.Event, 0, replayBatch)
	for {
		var err error
		buf, err = r.Read(buf[:0])
		if !h.walkEvents(buf, w) {
			return nil
		}
		for _, m := range r.Annotations() {
			if err := h.Annotate(&m); err != nil {
				return fmt.Errorf("replay %s: %w", m.Kind, err)
			}
			if w.Annotated != nil {
				w.Annotated(&m)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// walkEvents applies events and reports whether it applied all of them.
func (h *Heap) walkEvents(events []event.Event, w Walker) bool {
	for i := range events {
		e := &events[i]
		if i%blocks.PrefetchBatch == 0 {
			h.prefetch(events[i:])
		}
		if w.Before != nil && !w.Before(e) {
			return false
		}
		h.Apply(e)
		if w.After != nil {
			w.After(e)
		}
	}
	return true
}
