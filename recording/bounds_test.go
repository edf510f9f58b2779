// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestDue: a checkpoint is made by size and age of an epoch, so that a limit drops an eighth of the file or a
// quarter of the time; without a limit, after a minute in which it grew to eight times its checkpoint. It is not
// made while the file is trimmed.
func TestDue(t *testing.T) {
	const hour = time.Hour
	for name, tt := range map[string]struct {
		options Options
		grown   int64
		base    int64
		age     time.Duration
		trims   bool
		want    bool
	}{
		"an eighth of the limit":        {Options{MaxSize: 800}, 100, 10, 0, false, false},
		"more than an eighth":           {Options{MaxSize: 800}, 101, 10, 0, false, true},
		"twice the checkpoint":          {Options{MaxSize: 800}, 400, 200, 0, false, false},
		"more than twice":               {Options{MaxSize: 800}, 401, 200, 0, false, true},
		"trimmed":                       {Options{MaxSize: 800}, 401, 200, 0, true, false},
		"younger than a quarter":        {Options{MaxAge: 4 * hour}, 1, 1, hour - time.Minute, false, false},
		"older than a quarter":          {Options{MaxAge: 4 * hour}, 1, 1, hour + time.Minute, false, true},
		"no limit, grown, young":        {Options{}, 1 << 30, 1, time.Second, false, false},
		"no limit, grown, older":        {Options{}, 801, 100, 2 * time.Minute, false, true},
		"no limit, hardly grown, older": {Options{}, 800, 100, 2 * time.Minute, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Writer{options: tt.options, size: 5000 + tt.grown, base: tt.base,
				epochs: []epochStart{{0, time.Now()}, {5000, time.Now().Add(-tt.age)}}}
			w.block.begin()
			if tt.trims {
				w.trim = &trim{}
			}
			require.Equal(t, tt.want, w.Due())
		})
	}
}

// TestCopyRange: bytes behind the range, such as those of a write that failed, are not copied.
func TestCopyRange(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, copyRange(&out, bytes.NewReader([]byte("0123456789")), 3, 7))
	require.Equal(t, "3456", out.String())
}

// TestHowIsValid: of each field, the encodings that a writer of this version writes, by the drawing above them; no further bits.
func TestHowIsValid(t *testing.T) {
	join := func(size, requested, allocated, reserved how) how {
		return size | requested<<howRequested | allocated<<howAllocated | reserved<<howReserved
	}
	for size := how(0); size < 5; size++ {
		for requested := how(0); requested < 5; requested++ {
			for allocated := how(0); allocated < 5; allocated++ {
				for reserved := how(0); reserved < 5; reserved++ {
					want := size <= 1 && requested != 2 && requested <= 3 && allocated <= 2 && reserved <= 2
					require.Equal(t, want, join(size, requested, allocated, reserved).valid(), "%d %d %d %d", size, requested, allocated, reserved)
				}
			}
		}
	}
	require.True(t, (isAligned | join(1, 1, 1, 1)).valid())
	require.False(t, (isAligned<<1 | join(1, 1, 1, 1)).valid())
}

// annotationOf is an annotation of a kind with a body, as it is in a file.
func annotationOf(kind event.AnnotationKind, body column) *cursor {
	var c column
	c.number(uint64(kind))
	c.number(uint64(len(body)))
	return &cursor{data: append(c, body...)}
}

// TestAnnotationBounds: a process has 32 bits; segments are as many as there can be in the bytes behind their number.
func TestAnnotationBounds(t *testing.T) {
	for pid, ok := range map[uint64]bool{1<<32 - 1: true, 1 << 32: false, 1<<33 - 1: false} {
		var body column
		body.number(pid)
		c := annotationOf(event.AnnotationWatch, body)
		m := readAnnotation(c)
		require.Equal(t, ok, c.err == nil, "%d", pid)
		if ok {
			require.EqualValues(t, pid, m.PID)
		}
	}
	for segments := range 4 {
		var body column
		for _, v := range []uint64{7, 1, 0, 0, 0, 0, 0, 0} { // process, device, times, totals, no blocks
			body.number(v)
		}
		body.number(uint64(segments) + 1)
		for range 2 {
			body = append(body, 2, 1, 0)
		}
		c := annotationOf(event.AnnotationObserved, body)
		m := readAnnotation(c)
		if segments <= 2 {
			require.NoError(t, c.err, "%d", segments)
			require.Len(t, m.Observation.Segments, segments)
		} else {
			require.Error(t, c.err, "%d in the bytes of two", segments)
		}
	}
}

// TestWriteNothing: without frames, nothing is written; after an error nothing is either, and what waits is dropped.
func TestWriteNothing(t *testing.T) {
	f := &memoryFile{room: -1}
	w := &Writer{file: f, epochs: []epochStart{{}}}
	w.write()
	require.Empty(t, f.data)
	w.buffer = []byte("abc")
	w.write()
	require.Equal(t, "abc", string(f.data))
	require.EqualValues(t, 3, w.size)
	require.Empty(t, w.buffer)
	w.buffer, w.err = []byte("def"), errNoEnd
	w.write()
	require.Equal(t, "abc", string(f.data))
	require.Empty(t, w.buffer)
}
