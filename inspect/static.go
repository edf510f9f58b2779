// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
)

// PyTorch 1.13 and before have no variable with a pointer to the allocator, nor an exported one of any kind: it is a static
// object of the library (THCCachingAllocator). Its list of devices is found through the exported functions that begin
// by looking at it:
//
//	c10::cuda::CUDACachingAllocator::emptyCache():
//	  mov begin(%rip),%rax ; mov end(%rip),%r12 ; cmp %r12,%rax ...
//
// begin and end are beside each other. The same in getDeviceStats(int) and others.
const (
	maxOpening  = 64 // instructions of a function that are looked at
	minOpenings = 2  // functions that must agree
)

// findStatic finds a static allocator; nil when the library does not look as if it had one. It is taken to begin where the
// library does, so that places in it are link-time addresses.
func (l *allocatorLibrary) findStatic(m process.Memory, f *symbolize.File, bias uint64) *Allocator {
	votes := map[uint64]int{}
	for _, function := range f.FindPrefix(l.namespace) {
		for _, at := range pairsOf(f, function.Addr) {
			votes[at]++
		}
	}
	var best uint64
	for at, n := range votes {
		if n > votes[best] || n == votes[best] && at < best {
			best = at
		}
	}
	if votes[best] < minOpenings {
		return nil
	}
	layout := layoutOf(f)
	layout.vectors = []uint64{best}
	return &Allocator{memory: m, native: bias, layout: layout}
}

// pairsOf lists the link-time addresses of words that a function loads together with the word behind, each once.
func pairsOf(f *symbolize.File, start uint64) []uint64 {
	code, ok := f.Text(start, maxOpening*8)
	if !ok {
		return nil
	}
	loaded := map[uint64]bool{}
	var out []uint64
	for _, inst := range machinecode.For(f.Machine()).Decode(code, start, maxOpening) {
		if inst.Op == machinecode.Return || inst.Op == machinecode.Jump {
			break
		}
		if inst.Op != machinecode.Load || inst.Base != 0 || inst.Index != 0 || inst.Size%wordSize != 0 {
			continue
		}
		for word := uint64(inst.Offset); word < uint64(inst.Offset)+uint64(inst.Size); word += wordSize {
			loaded[word] = true
			for _, first := range []uint64{word - wordSize, word} {
				if loaded[first] && loaded[first+wordSize] {
					out = appendNew(out, first)
				}
			}
		}
	}
	return out
}
