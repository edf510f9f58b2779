// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestRewind: what was read to its end can be read again, in whole or from a time on, and keeps all names meanwhile: a reader
// that stops early needs those that come later.
func TestRewind(t *testing.T) {
	j := newJob(31)
	want := j.steps(30000)
	r := open(t, record(t, j, want))
	_, err := read(r, 1000)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, r.Rewind())
	_, err = r.Read(make([]event.Event, 0, 10))
	require.NoError(t, err)
	for id, s := range j.stacks {
		require.Equal(t, s, r.Stack(id))
	}
	require.NoError(t, r.Rewind())
	got, err := read(r, 500)
	require.ErrorIs(t, err, io.EOF)
	requireSame(t, want, got)
	require.Equal(t, ReasonStopped, r.End().Reason)
}

// TestSeekTime: reading begins at the last epoch that has nothing before it that is later.
func TestSeekTime(t *testing.T) {
	j := newJob(32)
	r := open(t, record(t, j, j.steps(30000)))
	epochs, err := r.Epochs()
	require.NoError(t, err)
	require.Greater(t, len(epochs), 5)
	for i := range epochs[1:] {
		later := epochs[i+1]
		if later.Time <= epochs[i].Time { // the times of wild events go anywhere
			continue
		}
		require.NoError(t, r.SeekTime(later.Time-1))
		require.LessOrEqual(t, r.offset, epochs[i].offset)
	}
	require.NoError(t, r.SeekTime(0))
	require.Equal(t, r.start, r.offset)
	require.NoError(t, r.SeekTime(^uint64(0)))
	require.Equal(t, epochs[len(epochs)-1].offset, r.offset)
}
