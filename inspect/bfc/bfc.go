// SPDX-License-Identifier: Apache-2.0

// Package bfc reads, from outside and without a probe, which blocks a tsl::BFCAllocator has handed out. TensorFlow and JAX divide
// their memory with this allocator.
//
// The place of its fields changes from release to release, and the wheels of both frameworks have no build ID. So each reading
// searches the object for the fields, and believes them only if everything that the allocator keeps about its memory agrees.
package bfc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gputrace/gputrace/process"
)

// Errors on which callers branch.
var (
	// ErrUnknownLayout means that no place in the object holds fields that agree with each other.
	ErrUnknownLayout = errors.New("unknown layout")
	// ErrChanged means that the allocator was busy during each reading. Another reading can succeed.
	ErrChanged = errors.New("changed while being read")
)

const (
	// objectBytes is how much of the object is searched: chunks_ was at 0x588 in TensorFlow 2.21, 0x438 in JAX 0.10.2, 0x488 in 0.12.0.1.
	objectBytes = 4096
	quietFor    = 50 * time.Millisecond // how long a moment without a change is waited for
	readTimeout = 200 * time.Millisecond
	readPause   = time.Millisecond
)

// Allocator is one BFCAllocator of a process. It is not safe for concurrent use.
type Allocator struct {
	memory process.Memory
	object uint64
	known  layout // the place that the last reading proved; zero: none yet
}

// New returns the allocator whose object is at an address of the process. It reads nothing.
func New(m process.Memory, object uint64) *Allocator { return &Allocator{memory: m, object: object} }

// Block is a chunk that the allocator has handed out.
type Block struct {
	Addr            uint64
	Size, Requested uint64 // bytes
}

// State is the allocator, each block as it was at some moment between From and To. The times are on the reader's clock.
type State struct {
	From, To uint64
	// Counted is the time since which InUse was the allocator's count, until To. If it is From, all blocks are of one instant.
	Counted  uint64
	InUse    uint64 // bytes that the allocator itself counts as handed out; of one instant, the sum of all Blocks' sizes
	Reserved uint64 // bytes of its regions, which it took from the driver or from the system
	Regions  []Region
	Blocks   []Block
}

// Region is memory that the allocator divides.
type Region struct{ Addr, Size uint64 }

// Read reads the allocator while the process runs. now is the clock of the State. Read repeats until one copy was made without a
// change. An allocator that leaves no such moment within 50 ms is read while it changes. Read takes at most 200 ms. Errors wrap
// ErrUnknownLayout, ErrChanged, an error of package process or, if ctx ended the reading, its cause.
func (a *Allocator) Read(ctx context.Context, now func() uint64) (*State, error) {
	for begun := time.Now(); ; time.Sleep(readPause) {
		s, err := a.attempt(now, time.Since(begun) > quietFor)
		switch {
		case err == nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case time.Since(begun) > readTimeout:
			return nil, fmt.Errorf("read the BFC allocator at %#x: %w", a.object, err)
		}
	}
}

// attempt reads once, with the place that was proved before or else with each place that is possible. busy: it may change meanwhile.
func (a *Allocator) attempt(now func() uint64, busy bool) (*State, error) {
	if a.known != (layout{}) {
		s, err := a.copy(a.known, now, busy)
		if err != nil && !errors.Is(err, ErrChanged) {
			err = fmt.Errorf("%w: %w", ErrChanged, err)
		}
		return s, err
	}
	object := make([]byte, objectBytes)
	n, err := a.memory.ReadAt(object, a.object)
	if n == 0 {
		return nil, err
	}
	why := fmt.Errorf("%w: no list of chunks", ErrUnknownLayout)
	begun := time.Now()
	for i, l := range layouts(object[:n]) {
		if time.Since(begun) > readTimeout { // in an allocator, few places are possible
			break
		}
		s, err := a.copy(l, now, busy)
		switch {
		case err == nil:
			a.known = l
			return s, nil
		case errors.Is(err, ErrChanged):
			why = err
		case i == 0:
			why = fmt.Errorf("%w: %w", ErrUnknownLayout, err)
		}
	}
	return nil, why
}

// copy reads the allocator at one instant. The allocator changes a chunk under its mutex, and with it bytes_in_use, the next id or the
// list of unused chunks. If these are the same before and after the chunks are copied, and nobody holds the mutex, then the copy is
// the state at the second look. Otherwise, if busy is set, it is a state that changes: see image.pieces.
func (a *Allocator) copy(l layout, now func() uint64, busy bool) (*State, error) {
	k, err := a.look(l, now)
	if err != nil {
		return nil, err
	}
	var s *State
	from := k.counted
	switch {
	case k.still():
		s, err = k.image.prove()
	case !k.after.held() && busy:
		s, err = k.image.pieces(k.after)
		from = k.begun
	default:
		err = ErrChanged
	}
	if err != nil {
		return nil, err
	}
	s.From, s.Counted, s.To = from, k.counted, k.to
	return s, nil
}

// look is one copy of the allocator, and its head after it.
type look struct {
	*image
	after              head
	begun, counted, to uint64 // before the copy, before the head was read again, and after that
}

// still reports whether nothing changed while the copy was made.
func (k *look) still() bool { return !k.held() && !k.after.held() && k.Fields == k.after.Fields }

func (a *Allocator) look(l layout, now func() uint64) (*look, error) {
	k := &look{begun: now()}
	before, err := a.head(l)
	if err != nil {
		return nil, err
	}
	if k.image, err = a.image(l, before); err != nil {
		return nil, err
	}
	k.counted = now()
	if k.after, err = a.head(l); err != nil {
		return nil, err
	}
	k.to = now()
	return k, nil
}

func (a *Allocator) head(l layout) (head, error) {
	b := make([]byte, headBytes)
	if _, err := a.memory.ReadAt(b, a.object+l.head); err != nil {
		return head{}, err
	}
	return headOf(b), nil
}

// image copies what the head refers to.
func (a *Allocator) image(l layout, h head) (*image, error) {
	if err := h.plausible(l); err != nil {
		return nil, err
	}
	if _, err := a.memory.ReadAt(make([]byte, 8), h.chunks().end-8); err != nil { // before memory is taken for a copy
		return nil, err
	}
	i := &image{head: h, layout: l, chunks: make([]byte, h.chunks().bytes())}
	if _, err := a.memory.ReadAt(i.chunks, h.chunks().begin); err != nil {
		return nil, err
	}
	raw := make([]byte, h.regions().bytes())
	if _, err := a.memory.ReadAt(raw, h.regions().begin); err != nil {
		return nil, err
	}
	for ; uint64(len(raw)) >= l.region; raw = raw[l.region:] {
		r := region{start: word(raw, 0), size: word(raw, 8), end: word(raw, 16)}
		first := make([]byte, 8)
		if _, err := a.memory.ReadAt(first, word(raw, 24)); err != nil {
			return nil, fmt.Errorf("chunks of the region at %#x: %w", r.start, err)
		}
		r.first = word(first, 0)
		i.regions = append(i.regions, r)
	}
	return i, nil
}

func word(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

func headOf(b []byte) head {
	var h head
	_ = binary.Read(bytes.NewReader(b), binary.LittleEndian, &h) // b has headBytes bytes
	return h
}
