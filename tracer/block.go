//go:build linux

package tracer

import (
	"path"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/inspect"
)

// allocatorLibraries hold the caching allocators that report.
var allocatorLibraries = []string{"libc10_cuda.so*", "libc10_hip.so*", "libc10_xpu.so*"}

// blockLayout says where, at the report of an allocation, the allocator's Block can be read: requested size, stream and
// pool come from there without a second probe. nil: not known; those fields are then unknown.
type blockLayout struct {
	sites  []inspect.BlockSite
	bias   uint64
	size   uint16
	ptr    uint16
	source string // file
}

// findBlockLayout looks at the code that calls the report.
func findBlockLayout(regions []region) *blockLayout {
	for i := range regions {
		r := &regions[i]
		if r.object.file == nil || !matchesAny(allocatorLibraries, r.Path) {
			continue
		}
		if r.object.blockSites == nil {
			r.object.blockSites, _ = inspect.BlockSites(r.object.file) // none: an unknown build
		}
		if len(r.object.blockSites) == 0 {
			continue
		}
		first := r.object.blockSites[0]
		return &blockLayout{sites: r.object.blockSites, bias: r.bias, size: first.SizeOffset, ptr: first.PtrOffset, source: r.Path}
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

// Places of Block's fields (struct Block of c10/cuda/CUDACachingAllocator.cpp): the stream is at 8, requested size and pool
// follow the size.
const (
	blockStream        = 8
	fromSizeToRequest  = 8
	fromSizeToPool     = 16
	largestBlockOffset = 120 // the kernel reads 128 bytes of a Block
)

// describe fills the C struct block_layout. Sites of another layout than the first's are left out.
func (l *blockLayout) describe(d *bpf.TraceProc) {
	if l == nil || l.size+fromSizeToPool > largestBlockOffset || l.ptr > largestBlockOffset {
		return
	}
	b := &d.Block
	b.Stream, b.Size, b.Ptr = blockStream, l.size, l.ptr
	b.Requested, b.Pool = l.size+fromSizeToRequest, l.size+fromSizeToPool
	for _, s := range l.sites {
		if s.SizeOffset != l.size || s.PtrOffset != l.ptr || int(b.Count) == len(b.Site) {
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
