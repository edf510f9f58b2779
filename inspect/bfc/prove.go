// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"errors"
	"fmt"
)

// region is memory that the allocator divides.
type region struct {
	start, size, end uint64
	first            uint64 // number of the chunk at start
}

// image is a copy of an allocator.
type image struct {
	head
	layout  layout
	chunks  []byte
	regions []region
	seen    []bool // chunks that are in a region or unused, by number
}

// prove returns the state if the copy shows one instant in the right layout:
//
//   - the chunks of each region follow each other without a gap, forwards and backwards, from its start to its end;
//   - every other chunk is in the list of unused ones, and none is in both;
//   - the chunks that are in use have an id that was dealt out, are at least as large as their request, and add up to bytes_in_use.
func (i *image) prove() (*State, error) {
	i.seen = make([]bool, uint64(len(i.chunks))/i.layout.stride)
	s := &State{}
	last := uint64(0)
	for _, r := range i.regions {
		if r.start < last || r.start == 0 || r.size == 0 || r.end-r.start != r.size || r.end < r.start {
			return nil, fmt.Errorf("no region can be %d bytes at %#x", r.size, r.start)
		}
		if err := i.walk(s, r); err != nil {
			return nil, fmt.Errorf("region at %#x: %w", r.start, err)
		}
		last = r.end
		s.addRegion(r)
	}
	if err := i.skipUnused(); err != nil {
		return nil, err
	}
	sum := uint64(0)
	for _, b := range s.Blocks {
		sum += b.Size
	}
	if s.InUse = i.inUse(i.layout); sum != s.InUse {
		return nil, fmt.Errorf("the chunks in use are %d bytes, the allocator counts %d", sum, s.InUse)
	}
	return s, nil
}

// pieces returns the state of an allocator that changed while it was copied; after is its head behind the copy. A chunk that no call
// took or freed meanwhile is in the copy as it is, and whoever knows the calls decides about the others. The blocks of both together
// add up to the count, which proves them. The layout is believed if nearly every chunk in use meets its neighbour.
func (i *image) pieces(after head) (*State, error) {
	if i.head.regions() != after.regions() || i.head.chunks().begin != after.chunks().begin {
		return nil, ErrChanged
	}
	s, sum, apart := &State{InUse: after.inUse(i.layout)}, uint64(0), 0
	for _, r := range i.regions {
		s.addRegion(r)
	}
	for at := uint64(0); at < uint64(len(i.chunks)); at += i.layout.stride {
		c := i.chunks[at:]
		b := Block{Addr: word(c, chunkPtr), Size: word(c, chunkSize), Requested: word(c, chunkRequested)}
		if word(c, chunkID) == noID {
			continue
		}
		if word(c, chunkID) >= after.nextID(i.layout) || b.Requested > b.Size || b.Size > s.Reserved || !i.meets(c, at/i.layout.stride) {
			apart++
		}
		s.Blocks, sum = append(s.Blocks, b), sum+b.Size
	}
	if apart*mostApart > len(s.Blocks) || sum/2 > s.InUse || s.InUse/2 > sum {
		return nil, ErrChanged
	}
	return s, nil
}

func (s *State) addRegion(r region) {
	s.Reserved, s.Regions = s.Reserved+r.size, append(s.Regions, Region{r.start, r.size})
}

// mostApart is the share of chunks, 1/mostApart, that may be apart from their neighbours because they are just being changed.
const mostApart = 100

// meets reports whether a chunk with a number and the next one are neighbours.
func (i *image) meets(c []byte, number uint64) bool {
	next := word(c, chunkNext)
	if next >= uint64(len(i.chunks))/i.layout.stride {
		return next == none
	}
	other := i.chunks[next*i.layout.stride:]
	return word(other, chunkPrev) == number && word(other, chunkPtr) == word(c, chunkPtr)+word(c, chunkSize)
}

// walk visits the chunks of a region and adds those in use to the state.
func (i *image) walk(s *State, r region) error {
	number, before := r.first, none
	for at := r.start; at < r.end; {
		c, err := i.visit(number)
		if err != nil {
			return err
		}
		size, id := word(c, chunkSize), word(c, chunkID)
		switch {
		case word(c, chunkPtr) == at && word(c, chunkPrev) == before && size > 0 && size <= r.end-at:
		case before == none:
			return fmt.Errorf("chunk %d does not begin it", number)
		default:
			return fmt.Errorf("chunk %d does not follow chunk %d", number, before)
		}
		if id != noID {
			b := Block{Addr: at, Size: size, Requested: word(c, chunkRequested)}
			if id >= i.nextID(i.layout) || b.Requested > size {
				return fmt.Errorf("chunk %d of %d bytes cannot be allocation %d of %d bytes", number, size, id, b.Requested)
			}
			s.Blocks = append(s.Blocks, b)
		}
		at, before, number = at+size, number, word(c, chunkNext)
	}
	if number != none {
		return fmt.Errorf("chunk %d follows the last one", number)
	}
	return nil
}

// visit returns the bytes of a chunk, which it must not have returned before.
func (i *image) visit(number uint64) ([]byte, error) {
	if number >= uint64(len(i.seen)) {
		return nil, fmt.Errorf("no chunk has the number %d", number)
	}
	if i.seen[number] {
		return nil, fmt.Errorf("chunk %d is in two places", number)
	}
	i.seen[number] = true
	return i.chunks[number*i.layout.stride:][:i.layout.stride], nil
}

// skipUnused visits the list of unused chunks. After it, every chunk has been visited.
func (i *image) skipUnused() error {
	for number := i.unused(); number != none; {
		c, err := i.visit(number)
		if err != nil {
			return fmt.Errorf("unused chunks: %w", err)
		}
		number = word(c, chunkNext)
	}
	for number := range i.seen {
		if !i.seen[number] {
			return errors.New("a chunk is in no region and not unused")
		}
	}
	return nil
}
