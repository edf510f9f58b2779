// SPDX-License-Identifier: Apache-2.0

// Package recording writes and reads the .gputrace file. It contains events in compressed columns, the names of their
// stacks, annotations between events, and checkpoints from which the live set can be rebuilt. At any time, and on any
// machine, a file is readable up to its last whole frame. See docs/decisions/recording.md.
package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/gputrace/gputrace/event"
)

// DamageError means that a recording ends before its end record, because it was cut off or its bytes were changed.
// Everything before Offset was read.
type DamageError struct {
	Offset int64 // position of the first frame that could not be read, bytes
	Lost   int64 // number of bytes from there on; 0: only the end record is missing
	Err    error // what is wrong there
}

func (e *DamageError) Error() string {
	if e.Lost == 0 {
		return fmt.Sprintf("the recording has no end record: it was cut off, or is still being written (%d bytes are whole)", e.Offset)
	}
	return fmt.Sprintf("the recording is damaged at byte %d: %v; the %d bytes from there on are lost", e.Offset, e.Err, e.Lost)
}

// Unwrap returns the underlying error.
func (e *DamageError) Unwrap() error { return e.Err }

// errNoEnd is the error of a recording that lacks only its end record.
var errNoEnd = errors.New("no end record")

// Reader reads a recording. It implements event.Replayable. It is not safe for concurrent use.
type Reader struct {
	r      io.ReaderAt
	closer io.Closer
	size   int64
	start  int64 // offset of the first epoch
	offset int64 // offset of the next frame

	info        Info
	end         *End
	first       Epoch
	decoder     *zstd.Decoder
	block       *blockReader
	annotations []event.Annotation
	older       *names // names of the previous epoch: the last epoch of a file that was cut off may have none yet
	// complete is all names, once the file was read to its end, for reading it again.
	complete []*names

	stored, payload []byte
	err             error // that ended reading; io.EOF
}

// Epoch is a place at which reading can begin.
type Epoch struct {
	Number uint64 // 0: the beginning of the trace
	Time   uint64 // time of the last event before it, CLOCK_BOOTTIME nanoseconds; 0: none
	Events uint64 // number of events before it
	offset int64
}

// Open opens a file. The error wraps ErrFormat when the file is not a recording or its first frame is damaged.
func Open(path string) (*Reader, error) {
	return OpenAs(path, func(r io.ReaderAt, _ int64) io.ReaderAt { return r })
}

// OpenAs is Open with a wrapper around the file, for example to observe progress. as receives the file and its size in bytes.
func OpenAs(path string, as func(r io.ReaderAt, size int64) io.ReaderAt) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is no file", ErrFormat)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open recording %s: %w", path, err), f.Close())
	}
	r, err := NewReader(as(f, st.Size()), st.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open recording %s: %w", path, err), f.Close())
	}
	r.closer = f
	return r, nil
}

// NewReader reads a recording of size bytes.
func NewReader(r io.ReaderAt, size int64) (*Reader, error) {
	var head [headerBytes]byte
	n, err := r.ReadAt(head[:min(size, headerBytes)], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read: %w", err)
	}
	if err := checkHeader(head[:n]); err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRaw), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	out := &Reader{r: r, size: size, offset: headerBytes, decoder: decoder, block: newBlockReader()}
	kind, payload, err := out.frame()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: its first frame: %w", ErrFormat, err)
	case kind != frameInfo:
		return nil, fmt.Errorf("%w: its first frame is of type %d", ErrFormat, kind)
	}
	if err := json.Unmarshal(payload, &out.info); err != nil {
		return nil, fmt.Errorf("%w: its first frame: %w", ErrFormat, err)
	}
	out.start = out.offset
	if kind, payload, err := out.frame(); err == nil && kind == frameCheckpoint {
		out.first, _, _ = readEpoch(payload)
	}
	out.offset = out.start
	return out, nil
}

// Close releases the file.
func (r *Reader) Close() error {
	r.decoder.Close()
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

// Info returns the information at the beginning of the recording.
func (r *Reader) Info() *Info { return &r.info }

// End returns the information at the end of the recording; nil until Read has returned io.EOF.
func (r *Reader) End() *End { return r.end }

// First returns the first epoch of the file, which is later than 0 if the beginning of the trace was dropped.
func (r *Reader) First() Epoch { return r.first }

// IsCut reports whether the beginning of the trace was dropped.
func (r *Reader) IsCut() bool { return r.first.Number > 0 }

// Annotations implements event.Replayable.
func (r *Reader) Annotations() []event.Annotation {
	m := r.annotations
	r.annotations = nil
	return m
}

// Stack implements event.Source. Names can follow the events that use them; after the last event all are known.
func (r *Reader) Stack(id event.StackID) *event.Stack {
	if id == 0 {
		return nil
	}
	if s := r.block.names.stack(id); s != nil {
		return s
	}
	if r.older != nil {
		if s := r.older.stack(id); s != nil {
			return s
		}
	}
	for _, n := range r.complete {
		if s := n.stack(id); s != nil {
			return s
		}
	}
	return nil
}

// Read implements event.Source. It returns fewer events than fit before an annotation, and io.EOF after the end record.
// If that is missing or something cannot be read, it returns a *DamageError.
func (r *Reader) Read(buf []event.Event) ([]event.Event, error) {
	for r.err == nil && len(r.annotations) == 0 && len(buf) < cap(buf) {
		if r.block.over() {
			r.err = r.next()
			continue
		}
		var err error
		before := len(buf)
		buf, err = r.block.read(buf)
		if err == nil {
			r.annotations, err = r.block.readAnnotations()
		}
		if err != nil {
			r.err = r.damage(r.offset-frameBytes-int64(len(r.stored)), err)
		} else if len(buf) > before && r.block.over() {
			break // a batch ends with its frame
		}
	}
	if r.err != nil && len(buf) == 0 && len(r.annotations) == 0 {
		r.keepNames()
		return buf, r.err
	}
	return buf, nil
}

// next reads frames up to the next one with events or a checkpoint.
func (r *Reader) next() error {
	at := r.offset
	kind, payload, err := r.frame()
	if err != nil {
		return r.damage(at, err)
	}
	switch kind {
	case frameCheckpoint:
		err = r.begin(payload)
	case frameNames:
		err = r.block.names.read(payload)
	case frameEvents:
		err = r.block.begin(payload)
	case frameEnd:
		r.end = &End{}
		if err = json.Unmarshal(payload, r.end); err == nil {
			return io.EOF
		}
	}
	if err != nil {
		return r.damage(at, fmt.Errorf("a frame of type %d: %w", kind, err))
	}
	return nil
}

func (r *Reader) damage(at int64, err error) error {
	if at == r.size {
		err = errNoEnd
	}
	return &DamageError{Offset: at, Lost: r.size - at, Err: err}
}

// begin begins an epoch.
func (r *Reader) begin(payload []byte) error {
	_, state, err := readEpoch(payload)
	if err != nil {
		return err
	}
	r.older = r.block.names
	r.block = newBlockReader()
	if len(state) > 0 {
		r.annotations = append(r.annotations, event.Annotation{Kind: event.AnnotationCheckpoint, State: append([]byte(nil), state...)})
	}
	return nil
}

func readEpoch(payload []byte) (Epoch, []byte, error) {
	c := cursor{data: payload}
	e := Epoch{Number: c.number(), Time: c.number(), Events: c.number()}
	state := c.bytes(c.number())
	return e, state, c.err
}

// frame reads the next frame. Its payload is valid until the next call.
func (r *Reader) frame() (frameType, []byte, error) {
	h, head, err := readHead(r.r, r.offset, r.size)
	if err != nil {
		return 0, nil, err
	}
	r.stored, err = readStored(r.r, r.offset, h, head[:], r.stored)
	if err != nil {
		return 0, nil, err
	}
	r.offset += frameBytes + int64(h.stored)
	if h.kind == 0 || h.kind > frameEnd {
		return h.kind, nil, nil
	}
	if h.flags&^flagZstd != 0 || h.raw > limit(h.kind) {
		return 0, nil, fmt.Errorf("a frame of type %d, %d bytes, flags %#x: not known", h.kind, h.raw, h.flags)
	}
	payload := r.stored
	if h.flags&flagZstd != 0 {
		if r.payload, err = r.decoder.DecodeAll(r.stored, r.payload[:0]); err != nil {
			return 0, nil, fmt.Errorf("a frame of type %d: decompress: %w", h.kind, err)
		}
		payload = r.payload
	}
	if len(payload) != int(h.raw) {
		return 0, nil, fmt.Errorf("a frame of type %d: %d bytes, want %d", h.kind, len(payload), h.raw)
	}
	return h.kind, payload, nil
}

// Epochs lists the places at which reading can begin. It reads only the frames' heads, and stops where one cannot be read.
func (r *Reader) Epochs() ([]Epoch, error) {
	back := r.offset
	defer func() { r.offset = back }()
	var out []Epoch
	for at := r.start; at < r.size; {
		h, _, err := readHead(r.r, at, r.size)
		if err != nil {
			break
		}
		if r.offset = at; h.kind == frameCheckpoint {
			_, payload, err := r.frame()
			if err != nil {
				break
			}
			e, _, err := readEpoch(payload)
			if err != nil {
				return out, r.damage(at, err)
			}
			e.offset = at
			out = append(out, e)
		}
		at += frameBytes + int64(h.stored)
	}
	return out, nil
}

// keepNames keeps the names after the file was read to its end.
func (r *Reader) keepNames() {
	if r.complete != nil {
		return
	}
	r.complete = append(r.complete, r.block.names)
	if r.older != nil {
		r.complete = append(r.complete, r.older)
	}
}

// Seek makes an epoch of this reader the next to be read; its checkpoint is the first annotation.
func (r *Reader) Seek(e Epoch) {
	r.offset, r.err, r.annotations, r.older, r.block = e.offset, nil, nil, nil, newBlockReader()
}

// Rewind makes the first event the next to be read. If the file was read to its end, all names are kept.
func (r *Reader) Rewind() error {
	r.Seek(Epoch{offset: r.start})
	return nil
}

// SeekTime makes the last epoch that begins at or before a time, CLOCK_BOOTTIME nanoseconds, the next to be read; the
// first epoch for an earlier time.
func (r *Reader) SeekTime(time uint64) error {
	epochs, err := r.Epochs()
	if err != nil {
		return err
	}
	to := Epoch{offset: r.start}
	for _, e := range epochs {
		if e.Time > time {
			break
		}
		to = e
	}
	r.Seek(to)
	return nil
}
