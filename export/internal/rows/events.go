// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Event is one event, and the totals after it. nil is unknown. Its names are columns, and part of the interface; docs/use/tables.md is
// their description.
type Event struct {
	TS        *int64  `parquet:"ts,optional,delta,timestamp(nanosecond:local)"` // UTC
	Kind      string  `parquet:"kind,dict"`
	Layer     string  `parquet:"layer,dict"`
	Object    string  `parquet:"object,dict"`
	Device    string  `parquet:"device,dict"`
	PID       *int64  `parquet:"pid,optional,dict"`
	TID       *int64  `parquet:"tid,optional,dict"`
	Addr      uint64  `parquet:"addr"`
	Bytes     *int64  `parquet:"bytes,optional"`
	Requested *int64  `parquet:"requested,optional"`
	Stream    *uint64 `parquet:"stream,optional,dict"`
	Call      *string `parquet:"call,optional,dict"`
	StackID   *uint64 `parquet:"stack_id,optional,dict"`
	LeafPy    *string `parquet:"leaf_py,optional,dict"`
	Step      *int64  `parquet:"step,optional,dict"`
	// Live is what the layer of the process has on the device: of an allocator its own total, else what was seen since the first event.
	Live     *int64 `parquet:"live,optional"`
	Reserved *int64 `parquet:"reserved,optional"` // by the allocator
}

// EachEvent calls do with every event of a selection's range, in their order. MinSize leaves out events of smaller memory. The row is
// valid during the call only.
func (t *Table) EachEvent(s view.Selection, do func(*Event) error) error {
	boot, until := t.begin(), s.Until()
	var failed error
	err := t.Trace.Replay(&view.Visitor{Event: func(e *event.Event, h *heap.Heap) {
		if failed != nil || e.Time < s.From || until != 0 && e.Time > until || e.Size < s.MinSize {
			return
		}
		r := t.event(e, h, boot)
		failed = do(&r)
	}})
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("list the events: %w", err)
	}
	return nil
}

func (t *Table) event(e *event.Event, h *heap.Heap, boot int64) Event {
	r := Event{
		TS: at(e.Time, boot), Kind: e.Kind.String(), Layer: e.Layer.String(), Object: e.Object.String(), Device: e.Device.String(),
		PID: number(e.PID), TID: number(e.TID), Addr: e.Addr, Bytes: size(e.Size), Requested: size(e.Requested), Call: text(e.Call),
		Step: number(uint32(t.Trace.StepAt(e.Time))),
	}
	if e.Stream != event.Unknown {
		r.Stream = &e.Stream
	}
	if e.Stack != 0 {
		n := t.named(e.Stack)
		r.StackID, r.LeafPy = &n.id, text(n.python)
	}
	if e.Layer == event.LayerAllocator {
		if a, ok := h.Account(e.PID, e.Device); ok {
			r.Live, r.Reserved = size(a.Allocated), size(a.Reserved)
		}
	} else if d, ok := h.Driver(e.PID, e.Layer, e.Device); ok {
		r.Live = size(d.Live.Bytes)
	}
	return r
}
