// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import "github.com/gputrace/gputrace/event"

// Decoder turns records of the ring into events, as a Tracer does with those that it reads, but without a kernel and a
// process: of calls it knows no names, of stacks no more than their addresses. The cost of decoding is measured with it.
type Decoder struct{ tracer *Tracer }

// NewDecoder gives a decoder that has seen nothing.
func NewDecoder() *Decoder {
	return &Decoder{loneTracer()}
}

// Decode appends the event of a record, as bpf/records.h lays it out, to buf. Of a record that is no event it appends
// nothing. The record is not kept.
func (d *Decoder) Decode(buf []event.Event, record []byte) []event.Event {
	return d.tracer.Session.decode(buf, record)
}

// Stack is event.Source's.
func (d *Decoder) Stack(id event.StackID) *event.Stack { return d.tracer.Stack(id) }

// loneTracer is a tracer of one process, to which all records belong, without a kernel side.
func loneTracer() *Tracer {
	t := &Tracer{Session: &Session{raw: newRawTable(), detached: true}, stacks: newStackTable(DefaultStacks), member: &member{}}
	t.sole = t
	return t
}
