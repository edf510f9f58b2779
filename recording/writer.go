// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/gputrace/gputrace/event"
)

// Thresholds for writing to the file and for beginning an epoch.
const (
	flushEvery = time.Second
	flushBytes = 1 << 20 // size of columns; only blocks with observations are so large
	namesBytes = 1 << 20
	syncEvery  = 10 * time.Second
	epochEvery = time.Minute
	// epochGrowth is the minimum ratio between an epoch and the checkpoint at its beginning.
	epochGrowth = 8
	// epochNames is the largest number of different stacks or shapes of one epoch.
	epochNames = 1 << 20
)

// MinSize is the smallest Options.MaxSize other than 0, bytes.
const MinSize = 4 << 20

// Options may be nil.
type Options struct {
	// MaxSize is the size of the file at which its oldest epochs are dropped, which leaves about half of it; 0: no
	// limit, otherwise at least 4 MiB. The limit holds if a checkpoint takes less than a quarter of it. During the
	// copy, the disk needs room for another half.
	MaxSize int64
	// MaxAge is the duration at the end of the trace that is kept. Older epochs are dropped as a whole, so up to half
	// as much again is kept. 0: everything.
	MaxAge time.Duration
	// Before is the trace before the recording. nil: the recording begins with the trace.
	Before *Before
}

// Before is a trace up to the moment at which its recording begins. Such a recording is read as one whose oldest epochs were dropped.
type Before struct {
	State  []byte          // the live set, as heap.Heap.State encodes it
	Stacks []event.StackID // the stacks to which State refers
	Time   uint64          // time of the last event, CLOCK_BOOTTIME nanoseconds
	Events uint64          // number of events
}

// file has the methods of *os.File that a Writer needs.
type file interface {
	io.WriterAt
	io.ReaderAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Writer writes a recording. After the first error it writes nothing more: the file remains readable up to there, and
// all methods return that error. It is not safe for concurrent use.
type Writer struct {
	path    string // empty: the file cannot be replaced
	file    file
	options Options
	resolve event.Resolve
	encoder *zstd.Encoder
	block   blockWriter

	size   int64 // size of the file, whole frames
	prefix int64 // size of header and Info
	epochs []epochStart
	epoch  uint64 // number of the last epoch
	base   int64  // size of its checkpoint, with names
	events uint64 // number written or in block
	time   uint64 // time of the last event

	flushed, synced time.Time
	syncing         chan error
	trim            *trim
	buffer, stored  []byte
	waiting         int // number of events that are not in the file

	err     error
	missing uint64 // number of events since err
}

// epochStart is where an epoch begins.
type epochStart struct {
	offset int64
	begun  time.Time
}

// Create begins a recording in a new file.
func Create(path string, info *Info, resolve event.Resolve, o *Options) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create recording: %w", err)
	}
	w, err := newWriter(f, info, resolve, o)
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	w.path = path
	return w, nil
}

func newWriter(f file, info *Info, resolve event.Resolve, o *Options) (*Writer, error) {
	if o == nil {
		o = &Options{}
	}
	if o.MaxSize < 0 || o.MaxSize > 0 && o.MaxSize < MinSize || o.MaxAge < 0 {
		return nil, fmt.Errorf("record at most %d bytes, %s: at least %d bytes", o.MaxSize, o.MaxAge, MinSize)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("create recording: %w", err)
	}
	w := &Writer{file: f, options: *o, resolve: resolve, encoder: encoder, synced: time.Now(), flushed: time.Now()}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("create recording: %w", err)
	}
	w.buffer = appendHeader(nil)
	w.frame(frameInfo, text)
	w.write()
	w.prefix = w.size
	b := o.Before
	if b == nil {
		w.beginEpoch(nil, nil)
		w.write()
		return w, w.err
	}
	w.options.Before = nil // it can be large
	w.epoch, w.time, w.events = 1, b.Time, b.Events
	w.beginEpoch(b.State, b.Stacks)
	w.write()
	w.base = w.size - w.prefix
	return w, w.err
}

// Size returns the size of the file, bytes.
func (w *Writer) Size() int64 { return w.size }

// Missing returns the number of events that were not written because of an earlier error.
func (w *Writer) Missing() uint64 { return w.missing }

// Write adds events, whose memory may be reused afterwards. If Write is called regularly, even without events, they are
// in the file after at most a second, and remain readable if this process is killed.
func (w *Writer) Write(events []event.Event) error {
	for i := range events {
		if w.err != nil {
			w.missing += uint64(len(events) - i)
			return w.err
		}
		w.block.add(&events[i], w.resolve)
		w.waiting++
		if w.block.n == maxBlock || w.block.names.large {
			w.flush()
		}
	}
	if n := len(events); n > 0 {
		w.events += uint64(n)
		w.time = events[n-1].Time
	}
	now := time.Now()
	if now.Sub(w.flushed) >= flushEvery {
		w.flush()
	}
	w.tend(now)
	return w.err
}

// Annotate adds an annotation, which may be reused afterwards. For a checkpoint use Checkpoint.
func (w *Writer) Annotate(m *event.Annotation) error {
	if w.err != nil {
		return w.err
	}
	w.block.annotate(m)
	if w.block.bytes() > flushBytes {
		w.flush()
	}
	return w.err
}

// Flush writes everything so far to the disk before it returns.
func (w *Writer) Flush() error {
	if w.flush(); w.err != nil {
		return w.err
	}
	return w.wrap(w.file.Sync())
}

// Seal writes everything so far to the file and asks for no more names of stacks, so that Close, the only method that may be called
// afterwards, can be called in another goroutine.
func (w *Writer) Seal() error {
	w.flush()
	w.resolve = nil
	return w.err
}

// Due reports whether a checkpoint is due.
func (w *Writer) Due() bool {
	if w.err != nil || w.trim != nil {
		return false
	}
	last := w.epochs[len(w.epochs)-1]
	age, grown := time.Since(last.begun), w.size-last.offset
	switch n := w.block.names; {
	case len(n.ids) > epochNames, len(n.shapes) > epochNames:
		return true
	case w.options.MaxSize > 0 && grown > max(w.options.MaxSize/8, 2*w.base):
		return true
	case w.options.MaxAge > 0 && age > w.options.MaxAge/4:
		return true
	}
	return age > epochEvery && grown > epochGrowth*w.base
}

// Checkpoint begins an epoch. state is the result of all events and annotations before it, stacks are those that state
// refers to. A reader can begin at the epoch, and earlier epochs can be dropped.
func (w *Writer) Checkpoint(state []byte, stacks []event.StackID) error {
	if w.flush(); w.err != nil {
		return w.err
	}
	w.beginEpoch(state, stacks)
	w.write()
	w.base = w.size - w.epochs[len(w.epochs)-1].offset
	w.tend(time.Now())
	return w.err
}

func (w *Writer) beginEpoch(state []byte, stacks []event.StackID) {
	if len(w.epochs) > 0 {
		w.epoch++
	}
	w.epochs = append(w.epochs, epochStart{w.size, time.Now()})
	var c column
	for _, v := range []uint64{w.epoch, w.time, w.events, uint64(len(state))} {
		c.number(v)
	}
	w.block.begin()
	w.frame(frameCheckpoint, append(c, state...))
	for _, id := range stacks {
		if w.block.names.stack(id, w.resolve); w.block.names.large {
			w.frame(frameNames, w.block.names.take())
		}
	}
	w.frame(frameNames, w.block.names.take())
}

// Close ends the recording. It sets NotWritten and Error of end.
func (w *Writer) Close(end *End) error {
	w.flush()
	w.finishTrim(true)
	failed := w.err
	if failed != nil {
		end.NotWritten, end.Error = w.missing, failed.Error()
		w.err = nil // the last frame is small and may still fit
	}
	text, err := json.Marshal(end)
	if err == nil {
		w.frame(frameEnd, text)
		w.write()
		err = w.err
	}
	if failed != nil {
		err = failed
	}
	if w.syncing != nil {
		<-w.syncing
	}
	return errors.Join(err, w.wrap(w.file.Sync()), w.wrap(w.file.Close()), w.encoder.Close())
}

// flush writes everything pending.
func (w *Writer) flush() {
	if w.err != nil {
		return
	}
	w.flushed = time.Now()
	w.block.names.retry(w.resolve)
	w.frame(frameNames, w.block.names.take())
	if payload, starts := w.block.take(); payload != nil {
		w.compress(frameEvents, payload, starts)
	}
	w.write()
}

// frame adds a frame to the next write. An empty payload adds none.
func (w *Writer) frame(kind frameType, payload []byte) {
	if payload != nil {
		w.compress(kind, payload, nil)
	}
}

// compress adds a frame whose parts, which begin at starts, are compressed separately because they have little in common.
func (w *Writer) compress(kind frameType, payload []byte, starts []int) {
	w.stored = w.stored[:0]
	from := 0
	for _, to := range append(starts, len(payload)) {
		w.stored = w.encoder.EncodeAll(payload[from:to], w.stored)
		from = to
	}
	flags, stored := uint8(flagZstd), w.stored
	if len(stored) >= len(payload) {
		flags, stored = 0, payload
	}
	var err error
	if w.buffer, err = appendFrame(w.buffer, kind, flags, len(payload), stored); err != nil {
		w.fail(err)
	}
}

// write writes the added frames to the file, all or none.
func (w *Writer) write() {
	if w.err != nil || len(w.buffer) == 0 {
		w.buffer = w.buffer[:0]
		return
	}
	n, err := w.file.WriteAt(w.buffer, w.size)
	if err != nil {
		if n > 0 {
			err = errors.Join(err, w.file.Truncate(w.size))
		}
		w.fail(err)
	} else {
		w.size += int64(n)
		w.waiting = 0
	}
	if w.buffer = w.buffer[:0]; cap(w.buffer) > 4*namesBytes { // after a large checkpoint
		w.buffer, w.stored = nil, nil
	}
}

func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = w.wrap(err)
		w.missing += uint64(w.waiting)
		w.waiting = 0
	}
}

func (w *Writer) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write the recording: %w", err)
}

// tend does the periodic work.
func (w *Writer) tend(now time.Time) {
	w.finishTrim(false)
	w.startTrim(now)
	if w.syncing != nil {
		select {
		case err := <-w.syncing:
			w.syncing = nil
			if err != nil {
				w.fail(err)
			}
		default:
		}
	}
	if w.err == nil && w.syncing == nil && w.trim == nil && now.Sub(w.synced) >= syncEvery {
		w.synced = now
		done, f := make(chan error, 1), w.file
		w.syncing = done
		go func() { done <- f.Sync() }()
	}
}

// dropped returns the first epoch of a file to keep; 0: keep all.
func (w *Writer) dropped(now time.Time) int {
	first := 0
	if o := &w.options; o.MaxSize > 0 && w.size > o.MaxSize-o.MaxSize/8 && len(w.epochs) > 1 {
		first = slices.IndexFunc(w.epochs, func(e epochStart) bool { return w.size-e.offset <= o.MaxSize/2 })
		if first < 0 {
			first = len(w.epochs) - 1
		}
	}
	if age := w.options.MaxAge; age > 0 {
		i := len(w.epochs) - 1
		for i > 0 && now.Sub(w.epochs[i].begun) < age {
			i--
		}
		if i > 0 && now.Sub(w.epochs[i-1].begun) > age+age/4 {
			first = max(first, i)
		}
	}
	return first
}
