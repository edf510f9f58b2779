package heap

import (
	"errors"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/event"
)

// replayBatch is how many events are taken from a recording at once.
const replayBatch = 8192

// Mark does what the live set was told at this place of a recording. A checkpoint replaces an empty heap; another knows what
// is in it.
func (h *Heap) Mark(m *event.Mark) error {
	switch m.Kind {
	case event.MarkWatch:
		h.Watch(m.PID)
	case event.MarkUnwatch:
		h.Unwatch(m.PID)
	case event.MarkBaseline:
		h.SetBaseline(m.PID, m.Device, m.Allocated, m.Reserved)
	case event.MarkFromStart:
		h.FromStart(m.PID)
	case event.MarkLost:
		h.Lose(m.PID, m.Loss)
	case event.MarkObserved:
		_, err := h.Reconcile(*m.Observation)
		return err
	case event.MarkCheckpoint:
		if h.events > 0 {
			return nil
		}
		return h.SetState(m.State)
	}
	return nil
}

// Replay applies all that a recording has to an empty heap. The error is the recording's, but for io.EOF, or says which mark
// could not be followed; everything before it was applied.
func (h *Heap) Replay(r event.Recorded) error { return h.Walk(r, Walker{}) }

// Walker is asked and told about each event of a replay. Either may be nil; the event is valid during the call only.
type Walker struct {
	Before func(e *event.Event) bool // of an event that is to be applied next; false: the replay ends before it
	After  func(e *event.Event)      // it was applied
	Marked func(m *event.Mark)       // a mark was followed
}

// Walk is Replay step by step.
func (h *Heap) Walk(r event.Recorded, w Walker) error {
	buf := make([]event.Event, 0, replayBatch)
	for {
		var err error
		buf, err = r.Read(buf[:0])
		if !h.walkEvents(buf, w) {
			return nil
		}
		for _, m := range r.Marks() {
			if err := h.Mark(&m); err != nil {
				return fmt.Errorf("replay %s: %w", m.Kind, err)
			}
			if w.Marked != nil {
				w.Marked(&m)
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

// walkEvents applies events, and reports whether all were.
func (h *Heap) walkEvents(events []event.Event, w Walker) bool {
	for i := range events {
		e := &events[i]
		if i%ahead == 0 {
			h.touch(events[i:min(i+ahead, len(events))])
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
