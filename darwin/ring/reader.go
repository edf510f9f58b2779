// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gputrace/gputrace/event/figures"
)

const (
	minCapacity = 1 << 16
	maxCapacity = 1 << 30
	chunk       = 4 << 20 // bytes that are read at once
	maxRecord   = 1 << 20 // bytes; the shim writes none larger than a code object's
)

// ErrNotStarted is of a file whose header is not complete yet.
var ErrNotStarted = errors.New("the ring is not complete yet")

// Record is one record. Its body is valid until the next read.
type Record struct {
	Type Type
	What uint16
	body []byte // behind the head that all have
}

// File is what a ring is read from: a file that others write.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// Reader reads one ring. It reads and writes the file by calls rather than by a mapping: what the traced process does to the file can
// then end in an error only. Not safe for concurrent use.
type Reader struct {
	// PID and Arch ("x86_64", "arm64") are the process's; Started is when it made the ring, on the clock of the events.
	PID     int
	Arch    string
	Started uint64

	file     File
	capacity uint64
	tail     uint64
	buf      []byte
}

// Open opens the ring of a file. The error is ErrNotStarted when it is being made.
func Open(path string) (*Reader, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	r, err := New(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// New reads the header of a ring, which Close closes.
func New(f File) (*Reader, error) {
	h := make([]byte, offHead)
	if _, err := f.ReadAt(h, 0); errors.Is(err, io.EOF) {
		return nil, ErrNotStarted
	} else if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	if u32(h[offStarted:]) != 1 {
		return nil, ErrNotStarted
	}
	if got := u32(h[offMagic:]); got != magic {
		return nil, fmt.Errorf("magic %#x, not %#x: no ring", got, magic)
	}
	if got := binary.LittleEndian.Uint16(h[offVersion:]); got != version {
		return nil, fmt.Errorf("version %d, not %d", got, version)
	}
	r := &Reader{PID: int(u32(h[offPID:])), Started: u64(h[offTime:]), file: f, capacity: u64(h[offCapacity:])}
	if r.capacity < minCapacity || r.capacity > maxCapacity || r.capacity&(r.capacity-1) != 0 {
		return nil, fmt.Errorf("capacity %d: not a power of two from %d to %d", r.capacity, minCapacity, maxCapacity)
	}
	switch arch := binary.LittleEndian.Uint16(h[offArch:]); arch {
	case 1:
		r.Arch = "x86_64"
	case 2:
		r.Arch = "arm64"
	default:
		return nil, fmt.Errorf("processor %d is not known", arch)
	}
	tail, err := r.word(offTail)
	r.tail = tail
	if err == nil {
		err = r.announce()
	}
	return r, err
}

// announce says who reads the ring, so that the writer stops when this process is killed.
func (r *Reader) announce() error {
	if _, err := r.file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid())), offReader); err != nil {
		return fmt.Errorf("say who reads it: %w", err)
	}
	return nil
}

// Close has the writer write no more, and closes the file.
func (r *Reader) Close() error {
	_, err := r.file.WriteAt([]byte{1}, offClosed)
	if err != nil {
		err = fmt.Errorf("ring: say that it is read no more: %w", err)
	}
	return errors.Join(err, r.file.Close())
}

func (r *Reader) word(at int) (uint64, error) {
	var b [8]byte
	if _, err := r.file.ReadAt(b[:], int64(at)); err != nil {
		return 0, fmt.Errorf("read header: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// Read calls f with each record that is there, up to about 4 MiB of them, and gives their room back to the writer. more says that
// there are others. A ring that makes no sense is an error: nothing more can be read from it.
func (r *Reader) Read(f func(*Record) error) (more bool, err error) {
	head, err := r.word(offHead) // before the data: what is before head is complete
	if err != nil {
		return false, err
	}
	if head < r.tail || head-r.tail > r.capacity {
		return false, fmt.Errorf("ring: written to %d, read to %d of %d bytes", head, r.tail, r.capacity)
	}
	n := min(head-r.tail, chunk)
	if err := r.fill(n); err != nil {
		return false, err
	}
	used, err := r.each(f, n < head-r.tail)
	if err != nil {
		return false, err
	}
	r.tail += used
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], r.tail)
	if _, err := r.file.WriteAt(b[:], offTail); err != nil {
		return false, fmt.Errorf("ring: give room back: %w", err)
	}
	return r.tail < head, nil
}

// fill reads the next n bytes of the ring.
func (r *Reader) fill(n uint64) error {
	r.buf = append(r.buf[:0], make([]byte, n)...)
	at := r.tail & (r.capacity - 1)
	first := min(n, r.capacity-at)
	if _, err := r.file.ReadAt(r.buf[:first], int64(headerBytes+at)); err != nil {
		return fmt.Errorf("read ring: %w", err)
	}
	if _, err := r.file.ReadAt(r.buf[first:], headerBytes); err != nil && n > first {
		return fmt.Errorf("read ring: %w", err)
	}
	return nil
}

// each calls f with the records of the buffer, whose last may be cut, and returns how many bytes they have.
func (r *Reader) each(f func(*Record) error, cut bool) (used uint64, err error) {
	for rest := r.buf; len(rest) > 0; {
		if len(rest) < recordBytes {
			return 0, fmt.Errorf("ring: %d bytes are no record", len(rest))
		}
		size := int(binary.LittleEndian.Uint32(rest))
		if size < recordBytes || size%8 != 0 || size > maxRecord || size > len(rest) && !cut {
			return 0, fmt.Errorf("ring: a record of %d bytes, %d are left", size, len(rest))
		}
		if size > len(rest) {
			break
		}
		record := Record{
			Type: Type(binary.LittleEndian.Uint16(rest[4:])), What: binary.LittleEndian.Uint16(rest[6:]), body: rest[recordBytes:size],
		}
		if err := f(&record); err != nil {
			return 0, err
		}
		used, rest = used+uint64(size), rest[size:]
	}
	return used, nil
}

// Hits are the counters of the hooks, in the order of Hook.
func (r *Reader) Hits() ([]figures.Hits, error) {
	b := make([]byte, int(hookCount)*counterBytes)
	if _, err := r.file.ReadAt(b, offCounters); err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	var out []figures.Hits
	for i := range int(hookCount) {
		next := func() uint64 {
			v := binary.LittleEndian.Uint64(b)
			b = b[8:]
			return v
		}
		h := figures.Hits{Probe: Hook(i).String(), Hits: next(), Emitted: next(), Quiet: map[string]uint64{}, Dropped: map[string]uint64{}}
		for _, name := range quietNames {
			h.Quiet[name] = next()
		}
		for _, name := range dropNames {
			h.Dropped[name] = next()
		}
		next()
		out = append(out, h)
	}
	return out, nil
}

// StacksLost is how many stacks had no room; NamesLost is how many names of code.
func (r *Reader) StacksLost() (uint64, error) { return r.word(offStacks) }

// NamesLost is how many names of code had no room.
func (r *Reader) NamesLost() (uint64, error) { return r.word(offNames) }

// Pending are the requests that were entered and have not returned.
func (r *Reader) Pending() ([]Pending, error) {
	b := make([]byte, pendingSlots*pendingBytes)
	if _, err := r.file.ReadAt(b, int64(offPending)); err != nil {
		return nil, fmt.Errorf("read pending requests: %w", err)
	}
	var out []Pending
	u64 := binary.LittleEndian.Uint64
	for ; len(b) > 0; b = b[pendingBytes:] {
		if p := (Pending{u64(b), u64(b[8:]), u64(b[16:]), u64(b[24:])}); p.Thread != 0 {
			out = append(out, p)
		}
	}
	return out, nil
}
