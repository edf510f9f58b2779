// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestBefore: a recording that begins in the middle of a trace is read as one whose oldest epochs were dropped, and needs no stacks after
// it was sealed.
func TestBefore(t *testing.T) {
	path, j := filepath.Join(t.TempDir(), "a.gputrace"), newJob(1)
	id := j.stack()
	sealed := false
	resolve := func(id event.StackID) *event.Stack {
		require.False(t, sealed)
		return j.resolve(id)
	}
	before := &Before{State: []byte("live"), Stacks: []event.StackID{id}, Time: 70, Events: 9}
	w, err := Create(path, &Info{}, resolve, &Options{Before: before})
	require.NoError(t, err)
	require.NoError(t, w.Write([]event.Event{{Time: 75, PID: 1, Stack: id}, {Time: 80, PID: 1, Stack: 1 << 50}}))
	require.NoError(t, w.Seal())
	sealed = true
	done := make(chan error)
	go func() { done <- w.Close(&End{Reason: ReasonStopped}) }()
	require.NoError(t, <-done)

	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	require.Equal(t, []uint64{1, 70, 9}, []uint64{r.First().Number, r.First().Time, r.First().Events})
	buf, err := r.Read(make([]event.Event, 0, 8))
	require.NoError(t, err)
	marks := r.Annotations()
	require.Len(t, marks, 1)
	require.Equal(t, event.AnnotationCheckpoint, marks[0].Kind)
	require.Equal(t, "live", string(marks[0].State))
	for err == nil {
		var more []event.Event
		more, err = r.Read(make([]event.Event, 0, 8))
		buf = append(buf, more...)
	}
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, buf, 2)
	require.EqualValues(t, 75, buf[0].Time)
	require.Equal(t, j.stacks[id].Frames, r.Stack(id).Frames)
	require.Equal(t, ReasonStopped, r.End().Reason)
}
