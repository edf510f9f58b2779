// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestFlush: what is flushed can be read while the recording goes on, and after a failure it says why.
func TestFlush(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gputrace")
	j := newJob(3)
	w, err := Create(path, &Info{Name: "x"}, j.resolve, nil)
	require.NoError(t, err)
	want := []event.Event{j.tame(), j.tame()}
	require.NoError(t, w.Write(want))
	require.NoError(t, w.Flush())
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	got, err := f.Read(make([]event.Event, 0, 10))
	var damage *DamageError
	require.True(t, err == nil || errors.As(err, &damage), "it goes on: there is no end")
	require.Len(t, got, 2)
	require.Equal(t, want[1].Addr, got[1].Addr)
	w.fail(errors.New("the disk is full"))
	require.ErrorContains(t, w.Flush(), "the disk is full")
	require.ErrorContains(t, w.Write(want), "the disk is full")
	require.EqualValues(t, 2, w.Missing())
	require.ErrorContains(t, w.Annotate(&event.Annotation{Kind: event.AnnotationFromStart}), "the disk is full")
	require.False(t, w.Due())
}

// TestTend: the file is synced every ten seconds, one at a time; an error of that is the recording's.
func TestTend(t *testing.T) {
	w, err := Create(filepath.Join(t.TempDir(), "x.gputrace"), &Info{}, newJob(3).resolve, nil)
	require.NoError(t, err)
	start := w.synced
	w.tend(start.Add(syncEvery - 1))
	require.Nil(t, w.syncing)
	later := start.Add(syncEvery)
	w.tend(later)
	require.NotNil(t, w.syncing)
	require.Equal(t, later, w.synced)
	require.Eventually(t, func() bool { return len(w.syncing) == 1 }, 10*time.Second, time.Millisecond)
	first := w.syncing
	w.tend(later)
	require.Nil(t, w.syncing, "it is done")
	w.syncing = make(chan error, 1)
	w.tend(later.Add(time.Hour))
	require.NotEqual(t, first, w.syncing)
	require.Equal(t, later, w.synced, "one at a time")
	w.syncing <- errors.New("the disk is gone")
	w.tend(later.Add(time.Hour))
	require.ErrorContains(t, w.err, "the disk is gone")
	require.Nil(t, w.syncing)
	w.tend(later.Add(2 * time.Hour))
	require.Nil(t, w.syncing, "it is over")
}

// TestDropped: which epochs a file keeps, by size and by age. The last always stays.
func TestDropped(t *testing.T) {
	now := time.Now()
	epochs := func(offsets ...int64) []epochStart {
		var out []epochStart
		for i, o := range offsets {
			out = append(out, epochStart{o, now.Add(time.Duration(i-len(offsets)) * time.Minute)})
		}
		return out
	}
	for name, tt := range map[string]struct {
		options Options
		size    int64
		epochs  []epochStart
		want    int
	}{
		"no limit":              {Options{}, 1 << 40, epochs(0, 10, 20), 0},
		"at seven eighths":      {Options{MaxSize: 800}, 700, epochs(0, 100, 600), 0},
		"above":                 {Options{MaxSize: 800}, 701, epochs(0, 100, 600), 2},
		"half of it is kept":    {Options{MaxSize: 800}, 750, epochs(0, 350, 600), 1},
		"a little more than":    {Options{MaxSize: 800}, 751, epochs(0, 350, 600), 2},
		"the last is too large": {Options{MaxSize: 800}, 790, epochs(0, 100), 1},
		"one only":              {Options{MaxSize: 800}, 799, epochs(0), 0},
		"by age":                {Options{MaxAge: 2 * time.Minute}, 10, epochs(0, 1, 2, 3), 2},
		"by age, a bit more":    {Options{MaxAge: 2*time.Minute + 1}, 10, epochs(0, 1, 2, 3), 1},
		"all are young":         {Options{MaxAge: time.Hour}, 10, epochs(0, 1, 2, 3), 0},
		"all are old":           {Options{MaxAge: time.Second}, 10, epochs(0, 1, 2, 3), 3},
		"the stricter of both":  {Options{MaxAge: 2 * time.Minute, MaxSize: 800}, 790, epochs(0, 1, 2, 500), 3},
	} {
		w := &Writer{options: tt.options, size: tt.size, epochs: tt.epochs}
		require.Equal(t, tt.want, w.dropped(now), name)
	}
}

// TestRank: what is not known is not named.
func TestRank(t *testing.T) {
	require.Equal(t, "rank 3", (&Rank{Rank: 3}).Label())
	require.Equal(t, "rank 3, pid 42", (&Rank{Rank: 3}).Process(42))
	require.Empty(t, (*Rank)(nil).Label())
	require.Equal(t, "pid 42", (*Rank)(nil).Process(42))
}
