// SPDX-License-Identifier: Apache-2.0

// Package allocator lists the frameworks' allocators and how they differ.
package allocator

import "fmt"

// Allocator identifies the framework's allocator that made a block. The zero value is PyTorch's.
type Allocator uint8

// The allocators are written to files, in three bits: never renumber.
const (
	// Torch is PyTorch's caching allocator, of any backend.
	Torch Allocator = 0
	// BFC is the allocator of TensorFlow and of XLA, and so of JAX (tsl::BFCAllocator).
	BFC Allocator = 1
	// OTel is any allocator that reports by OpenTelemetry's contract for memory, by samples.
	OTel Allocator = 2
	// CuPy is CuPy's default pool (cupy.cuda.MemoryPool).
	CuPy Allocator = 3
	// RMM is the pool of RAPIDS' memory manager (rmm::mr::pool_memory_resource).
	RMM Allocator = 4
)

// facts describes how one allocator differs from the others. The zero value claims nothing.
type facts struct {
	title      string // shown to people
	totals     bool   // its events carry its total of allocated bytes
	sizedFrees bool   // its frees carry the size of the block
	sampled    bool   // its events are samples: the size is the bytes that one represents, the requested bytes are its own
	simulated  bool   // gputrace knows its rules, so other settings can be simulated
	held       bool   // gputrace finds the objects that hold its blocks
}

var known = map[Allocator]facts{
	Torch: {title: "PyTorch", totals: true, sizedFrees: true, simulated: true, held: true},
	BFC:   {title: "BFC", sizedFrees: true, held: true},
	CuPy:  {title: "CuPy", held: true},
	RMM:   {title: "RMM", sizedFrees: true},
	OTel:  {title: "OpenTelemetry", sampled: true},
}

// String returns the allocator's name for people: "PyTorch", "BFC".
func (a Allocator) String() string {
	if f, ok := known[a]; ok {
		return f.title
	}
	return fmt.Sprintf("allocator %d", uint8(a))
}

// Totals reports whether the allocator's events carry its own total of allocated bytes.
func (a Allocator) Totals() bool { return known[a].totals }

// SizedFrees reports whether the allocator's frees carry the size of the block.
func (a Allocator) SizedFrees() bool { return known[a].sizedFrees }

// Sampled reports whether the allocator's events are samples. The size of each is the number of bytes that it represents, so
// sums of sizes are estimates; the requested bytes belong to the sampled allocation itself.
func (a Allocator) Sampled() bool { return known[a].sampled }

// Held reports whether gputrace finds the objects that hold the allocator's blocks.
func (a Allocator) Held() bool { return known[a].held }

// Simulated reports whether gputrace can compute the effect of another allocator setting.
func (a Allocator) Simulated() bool { return known[a].simulated }
