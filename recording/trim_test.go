// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// count is a checkpoint of a live set that is a number: how many events there were.
func count(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// TestMaxSize: a file that is bounded stays so, and at any time it begins with a checkpoint that agrees with what was
// dropped, and has everything from there on.
func TestMaxSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring.gputrace")
	j := newJob(21)
	w, err := Create(path, &Info{Name: "ring"}, j.resolve, &Options{MaxSize: MinSize})
	require.NoError(t, err)
	uid := uint32(os.Geteuid())
	if uid == 0 { // as under sudo
		uid = 12345
		require.NoError(t, os.Chown(path, 12345, 12345))
	}
	var events []event.Event
	trims, size := 0, int64(0)
	for trims < 3 {
		batch := make([]event.Event, 1000)
		for i := range batch {
			batch[i] = j.tame()
		}
		events = append(events, batch...)
		require.NoError(t, w.Write(batch))
		if w.Due() {
			require.NoError(t, w.Checkpoint(count(len(events)), j.ids))
		}
		if w.Size() < size {
			trims++
			requireTail(t, path, events, j, true)
		}
		size = w.Size()
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.LessOrEqual(t, st.Size(), int64(MinSize))
		require.Equal(t, uid, st.Sys().(*syscall.Stat_t).Uid)
		require.Less(t, len(events), 4_000_000, "nothing is dropped")
	}
	require.NoError(t, w.Close(&End{}))
	requireTail(t, path, events, j, false)
	_, err = os.Stat(path + ".tmp")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// requireTail reads what is left of a trace. In a file that is still written, the last events may be missing.
func requireTail(t *testing.T, path string, events []event.Event, j *job, growing bool) {
	t.Helper()
	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	got, err := read(r, 4096)
	if growing {
		var damage *DamageError
		require.ErrorAs(t, err, &damage)
		require.Zero(t, damage.Lost)
	} else {
		require.ErrorIs(t, err, io.EOF)
	}
	require.NotZero(t, r.First().Number)
	require.True(t, r.IsCut())
	at := int(r.First().Events)
	require.NotZero(t, at)
	require.Equal(t, events[at-1].Time, r.First().Time)
	for i, s := range got {
		if s.annotation != nil {
			require.Equal(t, count(at), s.annotation.State, "step %d", i)
			continue
		}
		require.Equal(t, events[at], *s.event)
		require.Equal(t, j.stacks[s.event.Stack], r.Stack(s.event.Stack))
		at++
	}
	if !growing {
		require.Equal(t, len(events), at)
	}
}

// TestMaxAge: what is older than the age is dropped, and nothing younger.
func TestMaxAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring.gputrace")
	j := newJob(22)
	const age = time.Hour
	w, err := Create(path, &Info{}, j.resolve, &Options{MaxAge: age})
	require.NoError(t, err)
	for i := range 12 {
		for n := range w.epochs { // a quarter of an hour passes
			w.epochs[n].begun = w.epochs[n].begun.Add(-age / 4)
		}
		require.NoError(t, w.Write([]event.Event{j.tame()}))
		w.finishTrim(true)
		require.True(t, w.Due())
		require.NoError(t, w.Checkpoint(count(i+1), j.ids))
		require.False(t, w.Due())
		w.finishTrim(true)
		require.NoError(t, w.err)
		oldest := time.Since(w.epochs[0].begun)
		require.Less(t, oldest, age+age/2)
		if w.epochs[0].offset > 0 && i >= 6 {
			require.GreaterOrEqual(t, oldest, age-time.Minute)
		}
	}
	require.NoError(t, w.Close(&End{}))
	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	require.Greater(t, r.First().Number, uint64(4))
}

// TestTrimFails: without room for a copy the recording stops, says so, and stays what it was.
func TestTrimFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring.gputrace")
	require.NoError(t, os.Mkdir(path+".tmp", 0o755)) // no file can be made there
	j := newJob(23)
	w, err := Create(path, &Info{}, j.resolve, &Options{MaxSize: MinSize})
	require.NoError(t, err)
	written := 0
	for err == nil && written < 4_000_000 {
		batch := make([]event.Event, 1000)
		for i := range batch {
			batch[i] = j.tame()
		}
		if err = w.Write(batch); err == nil && w.Due() {
			err = w.Checkpoint(count(0), j.ids)
		}
		written += len(batch)
	}
	require.ErrorContains(t, err, "drop its oldest part")
	end := &End{}
	require.Error(t, w.Close(end))
	require.Contains(t, end.Error, "drop its oldest part")
	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	got, err := read(r, 4096)
	require.ErrorIs(t, err, io.EOF)
	require.Greater(t, len(got), 1000)
	require.Contains(t, r.End().Error, "drop its oldest part")
}

// TestSeek: reading can begin at every epoch, and gives what a reading from the beginning gives there.
func TestSeek(t *testing.T) {
	j := newJob(24)
	want := j.steps(30000)
	r := open(t, record(t, j, want))
	epochs, err := r.Epochs()
	require.NoError(t, err)
	require.Greater(t, len(epochs), 5)
	events, n := uint64(0), 0
	starts := []int{0}
	for i, s := range want {
		if s.event != nil {
			events++
		} else if s.annotation.Kind == event.AnnotationCheckpoint {
			n++
			require.Equal(t, uint64(n), epochs[n].Number)
			require.Equal(t, events, epochs[n].Events)
			starts = append(starts, i)
		}
	}
	require.Len(t, epochs, n+1)
	for i := len(epochs) - 1; i >= 0; i-- {
		r.Seek(epochs[i])
		got, err := read(r, 1000)
		require.ErrorIs(t, err, io.EOF)
		requireSame(t, want[starts[i]:], got, "epoch %d", i)
	}
}

// TestEpochsOfDamaged: of a file that was cut off, the epochs that are there are listed.
func TestEpochsOfDamaged(t *testing.T) {
	_, data := small(t, 25)
	list := spans(t, data)
	for _, s := range list[1:] {
		r := open(t, data[:s.end-1])
		want := 0
		for _, other := range list {
			if other.kind == 2 && other.end < s.end {
				want++
			}
		}
		epochs, err := r.Epochs()
		require.NoError(t, err)
		require.Len(t, epochs, want)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MaxSize: -1}, {MaxSize: MinSize - 1}, {MaxAge: -1}} {
		path := filepath.Join(t.TempDir(), "x")
		_, err := Create(path, &Info{}, nil, &o)
		require.ErrorContains(t, err, "at least 4194304 bytes")
		_, err = os.Stat(path)
		require.ErrorIs(t, err, os.ErrNotExist, "a file was left")
	}
}

// TestFirstWriteFails: no recording without its first frames.
func TestFirstWriteFails(t *testing.T) {
	_, err := newWriter(&memoryFile{room: 20}, &Info{}, nil, nil)
	require.ErrorIs(t, err, errFull)
	_, err = NewReader(bytes.NewReader(nil), 0)
	require.True(t, errors.Is(err, ErrFormat))
}
