// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// job makes events, marks and stacks: some as a program makes them, some with any numbers in all fields.
type job struct {
	rng    *rand.Rand
	time   uint64
	live   []event.Event
	stacks map[event.StackID]*event.Stack
	ids    []event.StackID
	total  uint64
}

func newJob(seed uint64) *job {
	return &job{rng: rand.New(rand.NewPCG(seed, 1)), time: 1e15, stacks: map[event.StackID]*event.Stack{}}
}

func (j *job) resolve(id event.StackID) *event.Stack { return j.stacks[id] }

// any returns a number of any length, and now and then an unknown one.
func (j *job) any() uint64 {
	if j.rng.IntN(8) == 0 {
		return event.Unknown
	}
	return j.rng.Uint64() >> j.rng.IntN(64)
}

func (j *job) word() string {
	words := []string{"", "cudaMalloc", "cuMemAlloc_v2", "a\x00b", "\xff\xfe", "Net.forward", "/usr/lib/x.so", "çé"}
	return words[j.rng.IntN(len(words))]
}

// stack makes a stack, or gives one that was there; some share their outer frames.
func (j *job) stack() event.StackID {
	if len(j.ids) > 0 && j.rng.IntN(10) > 0 {
		return j.ids[j.rng.IntN(len(j.ids))]
	}
	id := event.StackID(j.rng.Uint64() | 1)
	s := &event.Stack{ID: id, Status: event.StackStatus(j.rng.IntN(256)), Frames: []event.Frame{}}
	if len(j.ids) > 0 && j.rng.IntN(2) == 0 {
		if other := j.stacks[j.ids[j.rng.IntN(len(j.ids))]]; other != nil && len(other.Frames) > 0 {
			s.Frames = append(s.Frames, other.Frames[j.rng.IntN(len(other.Frames)):]...)
		}
	}
	module := &event.Module{Path: j.word(), BuildID: j.word(), Start: j.any(), Limit: j.any(), Offset: j.any()}
	for range j.rng.IntN(6) {
		f := event.Frame{
			Kind: event.FrameKind(j.rng.IntN(128)), Func: j.word(), Linkage: j.word(), File: j.word(), Line: j.rng.IntN(100) - 1,
			StartLine: int(j.rng.Uint64()), Addr: j.any(), Offset: j.any(), Eval: j.rng.IntN(2) == 0, Inlined: j.rng.IntN(3) == 0,
		}
		if j.rng.IntN(2) == 0 {
			f.Module = module
		}
		s.Frames = append([]event.Frame{f}, s.Frames...)
	}
	j.ids = append(j.ids, id)
	j.stacks[id] = s
	return id
}

// wild has any numbers in all fields.
func (j *job) wild() event.Event {
	e := event.Event{
		Time: j.any(), PID: uint32(j.any()), TID: uint32(j.any()), Kind: event.Kind(j.any()), Layer: event.Layer(j.any()),
		Object: event.Object(j.any()), Device: event.Device{Type: event.DeviceType(j.any()), Index: int8(j.any())},
		Addr: j.any(), Size: j.any(), Handle: j.any(), Context: j.any(), Requested: j.any(), Stream: j.any(), Allocated: j.any(),
		Reserved: j.any(), Call: j.word(),
	}
	if j.rng.IntN(2) == 0 {
		e.Stack = j.stack()
	}
	return e
}

// tame is as a caching allocator reports.
func (j *job) tame() event.Event {
	j.time += j.rng.Uint64N(1e5)
	e := event.Event{
		Time: j.time, PID: 7, TID: 7 + j.rng.Uint32N(2), Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA},
		Handle: event.Unknown, Context: event.Unknown, Reserved: 1 << 30,
	}
	if n := len(j.live); n > 0 && j.rng.IntN(2) == 0 {
		i := j.rng.IntN(n)
		old := j.live[i]
		j.live[i] = j.live[n-1]
		j.live = j.live[:n-1]
		e.Kind, e.Addr, e.Size, e.Requested, e.Stream = event.KindFree, old.Addr, old.Size, event.Unknown, old.Stream
		j.total -= e.Size
		e.Allocated = j.total
		return e
	}
	e.Kind, e.Addr, e.Stack = event.KindAlloc, 0x7f<<40+j.rng.Uint64N(1<<20)*512, j.stack()
	e.Requested = 1 + j.rng.Uint64N(1<<20)
	e.Size = (e.Requested + 511) &^ 511
	j.total += e.Size
	e.Allocated = j.total
	j.live = append(j.live, e)
	return e
}

func (j *job) annotation() event.Annotation {
	kinds := []event.AnnotationKind{
		event.AnnotationWatch, event.AnnotationUnwatch, event.AnnotationObserved, event.AnnotationBaseline, event.AnnotationFromStart,
		event.AnnotationLost,
		event.AnnotationSteps, event.AnnotationHeld,
	}
	m := event.Annotation{Kind: kinds[j.rng.IntN(len(kinds))], PID: uint32(j.any())}
	device := event.Device{Type: event.DeviceType(j.any()), Index: int8(j.any())}
	switch m.Kind {
	case event.AnnotationLost:
		m.Loss = event.Loss{From: j.any(), To: j.any(), Events: j.any()}
	case event.AnnotationSteps:
		m.Steps = &event.Steps{Numbering: j.rng.IntN(5), Source: j.word(), On: j.word(), Chosen: j.word(), First: j.rng.IntN(1 << 30)}
		for range j.rng.IntN(5) {
			m.Steps.Begins = append(m.Steps.Begins, j.any())
		}
	case event.AnnotationHeld:
		m.Held = &event.Held{Time: j.any()}
		for range j.rng.IntN(5) {
			m.Held.Rows = append(m.Held.Rows, event.HeldRow{Site: j.word(), Holder: j.word(), Bytes: j.any(), Blocks: j.any()})
		}
	case event.AnnotationBaseline:
		m.Device, m.Allocated, m.Reserved = device, j.any(), j.any()
	case event.AnnotationObserved:
		o := &event.Observation{PID: m.PID, Device: device, From: j.any(), To: j.any(), Allocated: j.any(), Reserved: j.any()}
		if o.Allocators = j.rng.Uint64N(3); o.Allocators > 0 {
			o.Counted = j.any()
		}
		for range j.rng.IntN(5) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: j.any(), Size: j.any(), Requested: j.any(), Stream: j.any()})
		}
		if j.rng.IntN(3) > 0 {
			o.Segments = []event.ObservedSegment{}
		}
		for n := j.rng.IntN(5); n > 0 && o.Segments != nil; n-- {
			o.Segments = append(o.Segments, event.ObservedSegment{Addr: j.any(), Size: j.any(), Expandable: j.rng.IntN(2) == 0})
		}
		m.Observation = o
	}
	return m
}

// step is one call of a writer.
type step struct {
	event      *event.Event
	annotation *event.Annotation // of a checkpoint, with its state
}

// steps makes a trace.
func (j *job) steps(n int) []step {
	var out []step
	for range n {
		switch k := j.rng.IntN(200); {
		case k == 0:
			m := j.annotation()
			out = append(out, step{annotation: &m})
		case k == 1 && j.rng.IntN(8) == 0:
			out = append(out, step{annotation: &event.Annotation{Kind: event.AnnotationCheckpoint, State: []byte(j.word() + "state")}})
		case k < 40:
			e := j.wild()
			out = append(out, step{event: &e})
		default:
			e := j.tame()
			out = append(out, step{event: &e})
		}
	}
	return out
}

// write tells a writer the steps, in batches of any length.
func (j *job) write(w *Writer, steps []step) error {
	var batch []event.Event
	var errs []error
	for _, s := range steps {
		if s.event != nil {
			if batch = append(batch, *s.event); j.rng.IntN(100) == 0 {
				errs = append(errs, w.Write(batch))
				clear(batch) // it is the caller's again
				batch = batch[:0]
				if j.rng.IntN(5) == 0 {
					w.flush() // as after a second
				}
			}
			continue
		}
		errs = append(errs, w.Write(batch))
		batch = batch[:0]
		if s.annotation.Kind == event.AnnotationCheckpoint {
			errs = append(errs, w.Checkpoint(s.annotation.State, j.ids))
		} else {
			errs = append(errs, w.Annotate(s.annotation))
		}
	}
	return errors.Join(append(errs, w.Write(batch))...)
}

// read returns all that a reader has.
func read(r *Reader, batch int) ([]step, error) {
	out := []step{}
	for {
		events, err := r.Read(make([]event.Event, 0, batch))
		for i := range events {
			out = append(out, step{event: &events[i]})
		}
		annotations := r.Annotations()
		for i := range annotations {
			out = append(out, step{annotation: &annotations[i]})
		}
		if err != nil {
			return out, err
		}
	}
}

// requireSame compares steps; require.Equal takes its time for many.
func requireSame(t *testing.T, want, got []step, msg ...any) {
	t.Helper()
	require.Equal(t, len(want), len(got), msg...)
	for i := range want {
		if w, g := want[i].event, got[i].event; w == nil || g == nil || *w != *g {
			require.Equal(t, want[i], got[i], msg...)
		}
	}
}

// memoryFile is a file that can be full.
type memoryFile struct {
	data []byte
	room int // bytes that still fit; negative: no limit
}

var errFull = errors.New("no space left on device")

func (f *memoryFile) WriteAt(p []byte, at int64) (int, error) {
	n := len(p)
	if f.room >= 0 && n > f.room {
		n = f.room
	}
	f.data = append(f.data[:at], p[:n]...)
	if f.room >= 0 {
		f.room -= n
	}
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func (f *memoryFile) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(f.data).ReadAt(p, at)
}
func (f *memoryFile) Truncate(size int64) error { f.data = f.data[:size]; return nil }
func (f *memoryFile) Sync() error               { return nil }
func (f *memoryFile) Close() error              { return nil }

// record makes a recording in memory.
func record(t *testing.T, j *job, steps []step) []byte {
	t.Helper()
	f := &memoryFile{room: -1}
	w, err := newWriter(f, &Info{PID: 7, Name: "job"}, j.resolve, nil)
	require.NoError(t, err)
	require.NoError(t, j.write(w, steps))
	require.NoError(t, w.Close(&End{Reason: ReasonStopped}))
	return f.data
}

func open(t *testing.T, data []byte) *Reader {
	t.Helper()
	r, err := NewReader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	return r
}

// TestRoundTrip: what is read is what was written, every field of events, marks and stacks, in order.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(20) {
		j := newJob(seed)
		want := j.steps(12000)
		r := open(t, record(t, j, want))
		got, err := read(r, 1+int(seed)*300)
		require.ErrorIs(t, err, io.EOF)
		requireSame(t, want, got, "seed %d", seed)
		for id, s := range j.stacks {
			require.Equal(t, s, r.Stack(id), "seed %d", seed)
		}
		require.Nil(t, r.Stack(0))
		require.Nil(t, r.Stack(2))
		require.Equal(t, "job", r.Info().Name)
		require.Equal(t, ReasonStopped, r.End().Reason)
		require.NoError(t, r.Close())
	}
}

// TestInfoAndEnd: the frames of JSON, in a file, with what is not known.
func TestInfoAndEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gputrace")
	info := Info{
		Gputrace: "1", Started: time.Unix(5, 6).UTC(), StartedBoot: 7, Attached: 8, PID: 9, Name: "n", Exe: "/e", Cmdline: []string{"a", "b"},
		Python: "3.11", PyTorch: "2.15", CUDA: "13", Driver: "1", Kernel: "6", Hooks: []Hook{{"l", "/f", 3}}, Libraries: []string{"/p"},
	}
	const unknown = figures.Unknown
	end := End{
		Reason: ReasonExited, Duration: 5, Hits: []figures.Hits{{Probe: "p", Hits: 3, Emitted: 1, Quiet: map[string]uint64{"call failed": 1},
			Dropped: map[string]uint64{"ring full": 1}}}, StackRecordsLost: 1,
		RawStacks: &figures.RawStacks{Sent: 6, Unwound: 3, Guessed: 2, Partial: 1, OverRate: 4, NoRoom: 5},
		Checks:    &figures.Checks{Made: 1, Differences: 2, Failed: 3}, Sources: []Source{{"f", 1, "text"}}, Libraries: []string{"/p"},
		Memory: &Memory{
			Torch: []figures.TorchMemory{{Reserved: 5, Allocated: 4, Requested: unknown, Pending: unknown, InactiveSplit: 1}}, TorchWhy: "t",
			DriverWhy: "d", Moved: true, Whole: true,
			Driver: []figures.DriverUse{{Device: -1, Name: "GPU", UUID: "id", Used: unknown, Why: "why", Total: 1 << 40}},
		},
	}
	w, err := Create(path, &info, nil, nil)
	require.NoError(t, err)
	require.NoError(t, w.Close(&end))
	_, err = Create(path, &info, nil, nil)
	require.ErrorContains(t, err, "exists", "a recording was overwritten")
	r, err := Open(path)
	require.NoError(t, err)
	_, err = read(r, 1)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, &info, r.Info())
	require.Equal(t, &end, r.End())
	require.NoError(t, r.Close())
}

// TestLateStack: a stack that is not known when its event is written comes as soon as it is.
func TestLateStack(t *testing.T) {
	j := newJob(1)
	f := &memoryFile{room: -1}
	w, err := newWriter(f, &Info{}, j.resolve, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write([]event.Event{{Time: 1, Kind: event.KindAlloc, Stack: 5}}))
	w.flush()
	j.stacks[5] = &event.Stack{ID: 5, Frames: []event.Frame{{Kind: event.FramePython, Func: "late"}}}
	require.NoError(t, w.Close(&End{}))
	r := open(t, f.data)
	_, err = r.Read(make([]event.Event, 0, 10))
	require.NoError(t, err)
	require.Nil(t, r.Stack(5))
	_, err = read(r, 10)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, j.stacks[5], r.Stack(5))
}
