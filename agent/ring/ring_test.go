// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recording"
)

// made is a ring under a clock, whose processes write when a test says so.
type made struct {
	*Ring
	t       *testing.T
	dir     string
	log     strings.Builder
	mu      sync.Mutex
	now     time.Time
	ids     map[*recorder.Process]string
	space   string
	writers map[*recorder.Process]*recording.Writer
	events  uint64
}

func newMade(t *testing.T, dir string, change func(o *Options)) *made {
	m := &made{
		t: t, dir: dir, now: time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC), ids: map[*recorder.Process]string{},
		writers: map[*recorder.Process]*recording.Writer{},
	}
	o := &Options{
		Dir: dir, SegmentSize: 64 << 10, SegmentAge: time.Hour, TargetSize: 1 << 30, MaxSize: 1 << 30, MaxAge: 100 * time.Hour,
		Log: slog.New(slog.NewTextHandler(&m.log, nil)), Now: m.clock,
		Describe: func(p *recorder.Process) Target {
			m.mu.Lock()
			defer m.mu.Unlock()
			return Target{ID: m.ids[p], PID: 7, Program: "train.py", Namespace: m.space}
		},
	}
	if change != nil {
		change(o)
	}
	m.Ring = New(o)
	m.scan()
	t.Cleanup(func() { require.NoError(t, m.Close()); m.Wait() })
	return m
}

func (m *made) clock() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *made) pass(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
}

// begin begins the recording of a process.
func (m *made) begin(id string) *recorder.Process {
	p := &recorder.Process{}
	m.ids[p] = id
	w, _ := m.Create(p, &recording.Info{PID: 7, Name: "train.py"}, nil)
	m.writers[p] = w
	return p
}

// write records events of which each takes about 10 bytes, as the recorder does: it asks for segments, and hands over what failed.
func (m *made) write(p *recorder.Process, events int) error {
	if w := m.writers[p]; w != nil {
		all := make([]event.Event, events)
		for i := range all {
			m.events++
			n := m.events * 0x9e3779b97f4a7c15 // spread, so that it does not compress
			all[i] = event.Event{Time: m.events, PID: 7, Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: n, Size: n >> 40}
		}
		err := w.Write(all)
		if err == nil {
			err = w.Flush()
		}
		if err != nil {
			m.writers[p] = nil
			m.Failed(p, err)
			return err
		}
	}
	written := int64(-1)
	if w := m.writers[p]; w != nil {
		written = w.Size()
	}
	if !m.Due(p, written) {
		return nil
	}
	s := &recorder.Segment{Info: &recording.Info{PID: 7}, Before: &recording.Before{Time: m.events, Events: m.events}}
	if written >= 0 {
		s.End = &recording.End{Reason: recording.ReasonStopped}
	}
	var err error
	m.writers[p], err = m.Divide(p, s)
	return err
}

// files are the recordings on the disk, the oldest first, and their size.
func (m *made) files(id string) (names []string, bytes int64) {
	all, err := filepath.Glob(filepath.Join(m.dir, id, "*", export.TraceName))
	require.NoError(m.t, err)
	for _, f := range all {
		st, err := os.Stat(f)
		require.NoError(m.t, err)
		bytes += st.Size()
	}
	slices.Sort(all)
	return all, bytes
}

// step writes for a minute, and applies the bounds.
func (m *made) step(p *recorder.Process) {
	m.pass(time.Minute)
	_ = m.write(p, 1000)
	m.Wait()
	m.sweep(m.clock())
}

// TestBounds: the ring stays within the bounds of each process, of all and of the age; the oldest segments are removed, and counted.
func TestBounds(t *testing.T) {
	m := newMade(t, t.TempDir(), func(o *Options) { o.TargetSize, o.MaxSize, o.MaxAge = 512<<10, 768<<10, 10*time.Hour })
	one, two := m.begin("pid1-1"), m.begin("pid2-2")
	first, _ := m.files("pid1-1")
	for range 150 {
		m.step(one)
		_, n := m.files("pid1-1")
		require.LessOrEqual(t, n, int64(512<<10))
		m.step(two)
		_, n = m.files("*")
		require.LessOrEqual(t, n, int64(768<<10))
	}
	left, _ := m.files("pid1-1")
	require.NotEqual(t, first[0], left[0], "the oldest is not there any more")
	require.Greater(t, len(left), 2)
	require.Zero(t, m.Counts.Paused.Load())
	all, _ := m.files("*")
	require.EqualValues(t, len(all), m.Counts.Segments.Load()-m.Counts.Removed.Load())
	bytes, number := m.Size()
	require.Equal(t, len(all), number)
	require.LessOrEqual(t, bytes, int64(768<<10))
	require.Zero(t, m.Counts.Failures.Load(), m.log.String())
	for _, f := range left[:len(left)-1] {
		r, err := recording.Open(f)
		require.NoError(t, err)
		require.NotZero(t, r.First().Number)
		require.NoError(t, r.Close())
	}
	require.NoError(t, m.Finish(one, &recording.End{}))
	require.NoError(t, m.Finish(two, &recording.End{}))
	m.Wait()
	m.pass(9 * time.Hour)
	m.sweep(m.clock())
	_, number = m.Size()
	require.NotZero(t, number)
	m.pass(2 * time.Hour)
	m.sweep(m.clock())
	require.Empty(t, m.List())
	entries, err := os.ReadDir(m.dir)
	require.NoError(t, err)
	require.Empty(t, entries, "folders of processes are removed too")
}

// TestTooLarge: a process whose live set alone exceeds the bounds is not recorded for a while.
func TestTooLarge(t *testing.T) {
	m := newMade(t, t.TempDir(), func(o *Options) { o.TargetSize, o.SegmentSize = 64<<10, 1<<20 })
	p := m.begin("pid1-1")
	for range 20 {
		m.step(p)
	}
	require.EqualValues(t, 1, m.Counts.Paused.Load(), "the second segment begins after ten minutes and is small yet")
	_, n := m.files("*")
	require.LessOrEqual(t, n, int64(64<<10))
	require.EqualValues(t, 2, m.Counts.Segments.Load())
}

// TestFoundAgain: another agent finds the segments, continues in the folder of the same process, and stays within the bounds.
func TestFoundAgain(t *testing.T) {
	dir := t.TempDir()
	m := newMade(t, dir, nil)
	m.space = "red"
	p := m.begin("pid1-1")
	for range 40 {
		m.step(p)
	}
	before, n := m.files("pid1-1")
	require.Greater(t, len(before), 3)
	// The first agent is killed: its last segment has no end.
	next := newMade(t, dir, func(o *Options) { o.TargetSize = n / 2 })
	next.pass(time.Hour)
	require.Equal(t, "red", next.List()[0].Namespace)
	require.Len(t, next.List()[0].Segments, len(before))
	q := next.begin("pid1-1")
	next.step(q)
	after, n2 := next.files("pid1-1")
	require.LessOrEqual(t, n2, n/2)
	require.NotContains(t, after, before[0])
	require.Contains(t, after, before[len(before)-1])
	require.Len(t, next.List(), 1)
}

// TestRemovedDirectory: the recordings of a directory that is removed begin anew, when it can be written again.
func TestRemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ring")
	m := newMade(t, dir, nil)
	p := m.begin("pid1-1")
	for range 30 {
		m.step(p)
	}
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600), "a directory that cannot be made")
	m.tick()
	require.Contains(t, m.log.String(), "recordings were removed while they were written")
	require.ErrorContains(t, m.write(p, 10), "recordings: ")
	require.Nil(t, m.writers[p])
	require.NoError(t, m.write(p, 10), "it is not tried again at once")
	m.pass(time.Minute)
	require.Error(t, m.write(p, 10))
	failures := m.Counts.Failures.Load()
	require.GreaterOrEqual(t, failures, uint64(3))
	require.NoError(t, os.Remove(dir))
	m.pass(time.Minute)
	require.NoError(t, m.write(p, 0))
	require.NotNil(t, m.writers[p])
	require.NoError(t, m.write(p, 10))
	m.Wait()
	m.tick()
	require.Contains(t, m.log.String(), "recordings are written again")
	all, _ := m.files("*")
	require.Len(t, all, 1)
	require.Len(t, m.List()[0].Segments, 1)
	require.Equal(t, failures, m.Counts.Failures.Load())
}

// TestHostile: names that a ring does not make are not recorded, listed, opened or removed, and links do not lead out of it.
func TestHostile(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	secret := filepath.Join(out, "pid9-9", "20260101T000000.000000Z", export.TraceName)
	require.NoError(t, os.MkdirAll(filepath.Dir(secret), 0o700))
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(filepath.Join(out, "pid9-9"), filepath.Join(dir, "pid9-9")))
	own := filepath.Join(dir, "pid8-8", "20260101T000000.000000Z")
	require.NoError(t, os.MkdirAll(own, 0o700))
	require.NoError(t, os.Symlink(secret, filepath.Join(own, export.TraceName)))
	others := filepath.Join(dir, "other", "20260101T000000.000000Z", export.TraceName)
	require.NoError(t, os.MkdirAll(filepath.Dir(others), 0o700))
	require.NoError(t, os.WriteFile(others, nil, 0o600))
	m := newMade(t, dir, func(o *Options) { o.MaxAge = 0 })
	require.Empty(t, m.List())
	m.sweep(m.clock().Add(time.Hour))
	require.FileExists(t, others)
	require.FileExists(t, secret)
	for _, id := range []string{
		"", ".", "..", "../pid9-9", "pid9-9/..", "pid1-1\n", "pid1-1/", "pid-1", "PID1-1", "pid99999999999-1", "a\x00b",
	} {
		p := &recorder.Process{}
		m.ids[p] = id
		w, err := m.Create(p, &recording.Info{}, nil)
		require.Error(t, err, id)
		require.Nil(t, w)
		require.False(t, m.Due(p, -1))
		require.NoError(t, m.Finish(p, &recording.End{}))
	}
	p := m.begin("pid1-1")
	require.NoError(t, m.write(p, 10))
	for _, name := range []string{"", ".", "..", "../../pid9-9/20260101T000000.000000Z", "20260101T000000.000000Z", "LATEST"} {
		_, err := m.Find("pid1-1", name)
		require.ErrorIs(t, err, ErrNone)
		_, err = m.Find("../pid1-1", Latest)
		require.ErrorIs(t, err, ErrNone)
	}
	l, err := m.Find("pid1-1", Latest)
	require.NoError(t, err)
	file := m.path(&segment{target: &kept{id: "pid1-1"}, name: l.Segments[0].Name})
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Symlink(secret, file))
	_, err = m.Open(l)
	require.ErrorIs(t, err, ErrNone)
	_, err = m.Page(t.Context(), l, "test")
	require.ErrorIs(t, err, ErrNone)
	m.lose()
	require.True(t, m.Due(p, 1), "a link is not the file")
}

// TestUnused: a process without events leaves nothing, and the labels that become known later are written.
func TestUnused(t *testing.T) {
	m := newMade(t, t.TempDir(), nil)
	p := m.begin("pid1-1")
	m.space = "red"
	m.refresh()
	m.space = ""
	m.refresh()
	require.Equal(t, "red", m.List()[0].Namespace)
	text, err := os.ReadFile(filepath.Join(m.dir, "pid1-1", aboutName))
	require.NoError(t, err)
	require.Contains(t, string(text), `"namespace":"red"`)
	require.NoError(t, m.Finish(p, &recording.End{}))
	m.Wait()
	require.Empty(t, m.List())
	_, err = os.Stat(filepath.Join(m.dir, "pid1-1"))
	require.True(t, errors.Is(err, os.ErrNotExist))
}
