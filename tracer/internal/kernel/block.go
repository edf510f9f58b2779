// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"path"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// allocatorLibraries contain the caching allocators that report.
var allocatorLibraries = []string{"libc10_cuda.so*", "libc10_hip.so*", "libc10_xpu.so*"}

// blockLayout locates the allocator's Block at the report of an allocation. Requested size, stream and pool are read
// from it, without a second probe. nil: not known, so those fields are unknown.
type blockLayout struct {
	sites []inspect.BlockSite // at least one
	bias  uint64
}

// findBlockLayout analyses the code that calls the report.
func findBlockLayout(regions []mapped.Region) *blockLayout {
	for i := range regions {
		r := &regions[i]
		if r.File.Symbols == nil || !matchesAny(allocatorLibraries, r.Path) {
			continue
		}
		if sites := r.File.BlockSites(); len(sites) > 0 {
			return &blockLayout{sites: sites, bias: r.Bias}
		}
	}
	return nil
}

func matchesAny(globs []string, file string) bool {
	for _, g := range globs {
		if ok, _ := path.Match(g, path.Base(file)); ok {
			return true
		}
	}
	return false
}

// largestBlockOffset is the offset of the last word that the kernel reads from a Block (128 bytes).
const largestBlockOffset = 120

// describe fills the C struct block_layout. It leaves out sites with another layout than the first one's.
func (l *blockLayout) describe(d *bpf.TraceUnwindInfo) {
	if l == nil {
		return
	}
	first := &l.sites[0]
	if max(first.PoolOffset(), first.PtrOffset) > largestBlockOffset {
		return
	}
	b := &d.Block
	b.Stream, b.Size, b.Ptr = inspect.BlockStream, first.SizeOffset, first.PtrOffset
	b.Requested, b.Pool = first.RequestedOffset(), first.PoolOffset()
	b.Bytes = behindLast(b.Stream, b.Size, b.Ptr, b.Requested, b.Pool)
	for _, s := range l.sites {
		if s.SizeOffset != first.SizeOffset || s.PtrOffset != first.PtrOffset || int(b.Count) == len(b.Site) {
			continue
		}
		site := &b.Site[b.Count]
		site.Ret, site.Offset = s.Return+l.bias, s.Offset
		if s.BaseSP {
			site.BaseSp = 1
		}
		b.Count++
	}
}
