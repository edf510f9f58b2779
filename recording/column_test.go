// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// A number is read to its end and no further; what is none is an error, after which nothing more is read.
func TestCursorNumber(t *testing.T) {
	for _, want := range []uint64{0, 1, 0x7f, 0x80, 1 << 32, math.MaxUint64} {
		c := &cursor{data: append(binary.AppendUvarint(nil, want), 7)}
		require.Equal(t, want, c.number())
		require.NoError(t, c.err)
		require.Equal(t, []byte{7}, c.data)
	}
	for name, data := range map[string][]byte{"nothing": {}, "no end": {0x80}, "too long": bytes.Repeat([]byte{0xff}, 11)} {
		c := &cursor{data: data}
		require.Zero(t, c.number(), name)
		require.ErrorContains(t, c.err, "a number ends early", name)
		require.Empty(t, c.data, name)
	}
}

// What is longer than what is left is an error.
func TestCursorBytes(t *testing.T) {
	c := &cursor{data: []byte("abcdefgh")}
	require.Equal(t, "abc", string(c.bytes(3)))
	require.Equal(t, "defgh", string(c.bytes(5)))
	require.Empty(t, c.bytes(0))
	require.NoError(t, c.err)
	require.Empty(t, c.bytes(1))
	require.Error(t, c.err)
	c = &cursor{data: make([]byte, 7)}
	require.Zero(t, c.fixed())
	require.Error(t, c.err)
	c = &cursor{data: binary.LittleEndian.AppendUint64(nil, 1<<63)}
	require.Equal(t, uint64(1<<63), c.fixed())
	require.NoError(t, c.err)
}

// A count is one that can follow, an index one that is there.
func TestCursorLimits(t *testing.T) {
	for n, ok := range map[byte]bool{0: true, 3: true, 4: false} {
		c := &cursor{data: append([]byte{n}, make([]byte, 7)...)} // room for three of two bytes
		c.count(2)
		require.Equal(t, ok, c.err == nil, "count %d", n)
		c = &cursor{data: []byte{n}}
		c.index(4)
		require.Equal(t, n < 4, c.err == nil, "index %d", n)
	}
}

// TestLeastAnnotations: the shortest rows that there can be are as many as they say, and fill what is read.
func TestLeastAnnotations(t *testing.T) {
	device := event.Device{Type: event.DeviceCUDA}
	blocks := event.Observation{PID: 7, Device: device, Allocated: event.Unknown, Reserved: event.Unknown}
	segments := blocks
	segments.Segments = []event.ObservedSegment{}
	for i := range uint64(500) {
		blocks.Blocks = append(blocks.Blocks, event.ObservedBlock{Addr: 4 * i, Size: 4, Requested: 4})
		segments.Segments = append(segments.Segments, event.ObservedSegment{Addr: 4 * i, Size: 4})
	}
	for name, m := range map[string]event.Annotation{
		"blocks":   {Kind: event.AnnotationObserved, PID: 7, Observation: &blocks},
		"segments": {Kind: event.AnnotationObserved, PID: 7, Observation: &segments},
		"steps":    {Kind: event.AnnotationSteps, PID: 7, Steps: &event.Steps{Begins: make([]uint64, 500)}},
		"held":     {Kind: event.AnnotationHeld, PID: 7, Held: &event.Held{Rows: make([]event.HeldRow, 500)}},
	} {
		var c column
		appendAnnotation(&c, &m)
		in := &cursor{data: c}
		require.Equal(t, m, readAnnotation(in), name)
		require.NoError(t, in.err, name)
		require.Empty(t, in.data, name)
		for cut := range 20 { // a row less than it says
			short := &cursor{data: c[:len(c)-1-cut]}
			readAnnotation(short)
			require.Error(t, short.err, name)
		}
	}
}
