// SPDX-License-Identifier: Apache-2.0

// Package rows has the columns of the tables of allocations, which several formats write.
package rows

import (
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// Row is one allocation. nil is unknown. Its names are columns, and part of the interface; docs/use/tables.md is their description.
type Row struct {
	ID        int64   `parquet:"id,delta"`
	TS        *int64  `parquet:"ts,optional,delta,timestamp(nanosecond:local)"`      // birth, UTC
	FreeTS    *int64  `parquet:"free_ts,optional,delta,timestamp(nanosecond:local)"` // of the free, UTC; nil: in use
	Dur       *int64  `parquet:"dur,optional"`                                       // nanoseconds; nil: in use
	Bytes     *int64  `parquet:"bytes,optional"`
	Requested *int64  `parquet:"requested,optional"`
	Layer     string  `parquet:"layer,dict"`
	Object    string  `parquet:"object,dict"`
	Device    string  `parquet:"device,dict"`
	Segment   bool    `parquet:"segment"`
	Origin    string  `parquet:"origin,dict"`
	Stream    *uint64 `parquet:"stream,optional,dict"`
	PID       *int64  `parquet:"pid,optional,dict"`
	TID       *int64  `parquet:"tid,optional,dict"`
	Addr      uint64  `parquet:"addr"`
	Call      *string `parquet:"call,optional,dict"`
	StackID   *uint64 `parquet:"stack_id,optional,dict"`
	Stack     *string `parquet:"stack,optional,dict"`
	LeafPy    *string `parquet:"leaf_py,optional,dict"`
	Name      string  `parquet:"name,dict"`
	Phase     string  `parquet:"phase,dict"`
	Category  string  `parquet:"category,dict"`
	Step      *int64  `parquet:"step,optional,dict"`
	Holder    *string `parquet:"holder,optional,dict"`
}

// origins are how an allocation is known.
var origins = map[heap.Origin]string{heap.OriginEvent: "event", heap.OriginBefore: "before", heap.OriginRecovered: "recovered"}

// Table makes rows of a trace.
type Table struct {
	Trace *view.Trace
	// Boot is when CLOCK_BOOTTIME was 0. The zero value: not known, and the times begin in 1970.
	Boot    time.Time
	Version string // of gputrace, for files that name their writer

	stacks map[event.StackID]*named
}

// named is what all allocations of a stack have in common.
type named struct {
	id           uint64
	text, python string
}

// Each calls do with every allocation of a selection, as view.Trace.Allocations. The row is valid during the call only.
func (t *Table) Each(s view.Selection, do func(*Row) error) error {
	boot := t.begin()
	err := t.Trace.Allocations(s, func(a *view.Allocation) error {
		r := t.row(a, boot)
		return do(&r)
	})
	if err != nil {
		return fmt.Errorf("list the allocations: %w", err)
	}
	return nil
}

// begin begins a list of rows, and returns when CLOCK_BOOTTIME was 0, nanoseconds since 1970.
func (t *Table) begin() (boot int64) {
	t.stacks = map[event.StackID]*named{}
	if t.Boot.IsZero() {
		return 0
	}
	return t.Boot.UnixNano()
}

func (t *Table) row(a *view.Allocation, boot int64) Row {
	b := &a.Block
	r := Row{
		ID: int64(a.ID), TS: at(b.Time, boot), FreeTS: at(a.Freed, boot), Bytes: size(b.Size), Requested: size(b.Requested),
		Layer: b.Layer.String(), Object: b.Object.String(), Device: b.Device.String(), Segment: b.Segment, Origin: origins[b.Origin],
		PID: number(b.PID), TID: number(a.TID), Addr: b.Addr, Call: text(b.Call), Name: words.Valid(t.Trace.SiteName(b)),
		Phase: string(a.Phase), Category: string(a.Category), Step: number(uint32(a.Step)), Holder: text(a.Holder),
	}
	if b.Stream != event.Unknown {
		r.Stream = &b.Stream
	}
	if r.TS != nil && r.FreeTS != nil {
		dur := *r.FreeTS - *r.TS
		r.Dur = &dur
	}
	if b.Stack != 0 {
		n := t.named(b.Stack)
		r.StackID, r.Stack, r.LeafPy = &n.id, text(n.text), text(n.python)
	}
	return r
}

func (t *Table) named(id event.StackID) *named {
	n := t.stacks[id]
	if n == nil {
		n = &named{uint64(id), stacks.Text(t.Trace.Stack(id)), t.Trace.PythonLine(id)}
		t.stacks[id] = n
	}
	return n
}

// at is a time; nil: not known, or it did not happen.
func at(time uint64, boot int64) *int64 {
	if time == 0 {
		return nil
	}
	v := boot + int64(time)
	return &v
}

func size(n uint64) *int64 {
	if n == event.Unknown {
		return nil
	}
	v := int64(n)
	return &v
}

// number is a process or thread; 0 is none.
func number(n uint32) *int64 {
	if n == 0 {
		return nil
	}
	v := int64(n)
	return &v
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	s = words.Valid(s)
	return &s
}
