// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"bufio"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// writer writes packets. A trace is nothing but a row of them, so that one that is cut off is read up to there.
type writer struct {
	out       *bufio.Writer
	packet    message
	head      []byte
	sequences uint64
	err       error // the first one
}

func newWriter(w io.Writer) *writer { return &writer{out: bufio.NewWriterSize(w, 1<<16)} }

// sequence makes the next sequence, for events of a track; 0: they say theirs.
func (w *writer) sequence(track uint64) *sequence {
	w.sequences++
	return newSequence(w.sequences, track)
}

// begin begins a packet. The packet before must have been ended.
func (w *writer) begin(s *sequence, time uint64) *message {
	w.start(s)
	w.packet = w.packet[:0]
	w.packet.number(packetTimestamp, time)
	w.packet.number(packetSequence, s.id)
	w.packet.number(packetFlags, flagNeeds)
	return &w.packet
}

// start is the first packet of a sequence.
func (w *writer) start(s *sequence) {
	if s.begun {
		return
	}
	s.begun = true
	w.packet = w.packet[:0]
	w.packet.number(packetSequence, s.id)
	w.packet.number(packetFlags, flagCleared)
	at := w.packet.open(packetDefaults)
	if s.track != 0 {
		event := w.packet.open(defaultsTrackEvent)
		w.packet.number(eventTrack, s.track)
		w.packet.close(event)
	}
	w.packet.close(at)
	w.flush()
}

// end writes the packet, with what of the sequence's interned data is new.
func (w *writer) end(s *sequence) {
	if len(s.pending) > 0 {
		w.packet.bytes(packetInterned, s.pending)
		s.pending = s.pending[:0]
	}
	w.flush()
}

func (w *writer) flush() {
	w.head = protowire.AppendTag(w.head[:0], tracePacket, protowire.BytesType)
	w.head = protowire.AppendVarint(w.head, uint64(len(w.packet)))
	for _, b := range [][]byte{w.head, w.packet} {
		if _, err := w.out.Write(b); err != nil && w.err == nil {
			w.err = err
		}
	}
}

// single writes a packet without a time: what fill adds.
func (w *writer) single(s *sequence, fill func(m *message)) {
	w.start(s)
	w.packet = w.packet[:0]
	w.packet.number(packetSequence, s.id)
	fill(&w.packet)
	w.flush()
}

func (w *writer) finish() error {
	if err := w.out.Flush(); w.err == nil {
		w.err = err
	}
	return w.err
}
