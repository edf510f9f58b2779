// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"errors"
	"fmt"
)

// The fields that are read follow each other in the object (xla/tsl/framework/bfc_allocator.h; read in the code of TensorFlow 2.21,
// JAX 0.10.2 and JAX 0.12.0.1):
//
//	-0x20 mutex_               absl::Mutex, one word
//	-0x18 region_manager_      std::vector<AllocationRegion>
//	 0x00 chunks_              std::vector<Chunk>
//	 0x18 free_chunks_list_    number of the first unused chunk
//	      a chunk's number     the free memory between both ends of a region; only in JAX 0.12.0.1
//	 0x20 next_allocation_id_  or 0x28
//	 0x28 stats_               or 0x30: num_allocs, bytes_in_use, ...
//
// The place of chunks_ in the object is different in each release.
const (
	headBytes = 8 * (1 + headWords)
	headWords = 11 // after the mutex

	// mutexWriter is the bit of an absl::Mutex that is set while a thread holds it (kMuWriter of absl/synchronization/mutex.cc).
	mutexWriter = 8
)

// A Chunk begins with size, requested_size, allocation_id, ptr, prev and next, each of 8 bytes, in all releases so far. A Chunk has 64
// bytes up to JAX 0.10.2 and in TensorFlow 2.21, and 104 from JAX 0.12.0 on.
const (
	chunkSize = 8 * iota
	chunkRequested
	chunkID // noID if the chunk is free
	chunkPtr
	chunkPrev // number of the neighbour in the region, or none
	chunkNext // the same, or the next unused chunk

	minStride = 56
	maxStride = 256
)

// none is kInvalidChunkHandle: no chunk. noID is the allocation_id of a free chunk.
const (
	none = ^uint64(0)
	noID = ^uint64(0)
)

// regionSizes are the bytes of an AllocationRegion: ptr_, memory_size_, end_ptr_ and handles_, a std::vector of the chunks by address; in
// JAX 0.12.0.1 also the number of a chunk.
var regionSizes = []uint64{48, 56}

// Limits of what is believed of a target.
const (
	maxChunks  = 1 << 21
	maxRegions = 1 << 16
	minUser    = 0x1000  // lowest address that can be a pointer
	maxUser    = 1 << 57 // five-level paging
)

// layout is a place of the head in the object.
type layout struct {
	head   uint64 // offset of the mutex, bytes
	stride uint64 // bytes of a Chunk
	region uint64 // bytes of an AllocationRegion
	more   int    // words between free_chunks_list_ and next_allocation_id_: 0 or 1
}

// head is the fields of the object that are read.
type head struct {
	Mutex  uint64
	Fields [headWords]uint64
}

// vector is a std::vector of libstdc++ and of libc++.
type vector struct{ begin, end, capacity uint64 }

func (v vector) bytes() uint64 { return v.end - v.begin }

// fits reports whether the vector can have 1 to limit elements of a size in bytes.
func (v vector) fits(element, limit uint64) bool {
	return v.begin >= minUser && v.begin%8 == 0 && v.begin < v.end && v.end <= v.capacity && v.capacity < maxUser &&
		v.bytes()%element == 0 && (v.capacity-v.begin)%element == 0 && v.bytes()/element <= limit
}

func (h *head) regions() vector { return vector{h.Fields[0], h.Fields[1], h.Fields[2]} }
func (h *head) chunks() vector  { return vector{h.Fields[3], h.Fields[4], h.Fields[5]} }
func (h *head) unused() uint64  { return h.Fields[6] }

// held reports whether a thread has locked the allocator.
func (h *head) held() bool { return h.Mutex&mutexWriter != 0 }

func (h *head) nextID(l layout) uint64 { return h.Fields[7+l.more] }
func (h *head) inUse(l layout) uint64  { return h.Fields[9+l.more] }

// plausible rejects words that cannot be the head of an allocator with a region.
func (h *head) plausible(l layout) error {
	switch {
	case !h.regions().fits(l.region, maxRegions):
		return errors.New("no list of regions")
	case !h.chunks().fits(l.stride, maxChunks):
		return fmt.Errorf("no list of chunks of %d bytes", l.stride)
	case h.unused() != none && h.unused() >= h.chunks().bytes()/l.stride:
		return fmt.Errorf("no chunk has the number %d", h.unused())
	case h.nextID(l) == 0 || h.nextID(l) > 1<<62:
		return errors.New("no number of the next allocation")
	}
	return nil
}

// layouts lists the places in an object that can be the head.
func layouts(object []byte) []layout {
	var out []layout
	for at := 0; at+headBytes <= len(object); at += 8 {
		h := headOf(object[at:])
		for _, region := range regionSizes {
			if !h.regions().fits(region, maxRegions) {
				continue
			}
			for l := (layout{uint64(at), minStride, region, 0}); l.stride <= maxStride; l.stride += 8 {
				for l.more = range 2 {
					if h.plausible(l) == nil {
						out = append(out, l)
					}
				}
			}
		}
	}
	return out
}
