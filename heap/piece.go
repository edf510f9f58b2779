// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/ranges"
)

// pieceSegment is a segment known only from the allocator state. Its remaining ranges are stored as pieces, because an
// expandable segment is unmapped page by page and the size of its pages is not known. Pieces of one segment never touch
// each other, so the remaining memory determines them.
type pieceSegment struct {
	site       uint32
	expandable bool
}

// pieceRange is a range that was removed from a segment's pieces.
type pieceRange struct {
	segmentOf *pieceSegment
	lo, hi    uint64
}

func (o *object) bounds() (uint64, uint64) { return o.addr, o.addr + o.size }

// piece returns the piece that begins at an address, or nil.
func (p *process) piece(addr uint64) *object {
	from, to := ranges.Overlapping(p.pieces, (*object).bounds, addr, addr+1)
	if from == to || p.pieces[from].addr != addr {
		return nil
	}
	return p.pieces[from]
}

// removePieces removes [lo, hi) from the pieces and returns the removed ranges.
func (h *Heap) removePieces(p *process, lo, hi uint64) []pieceRange {
	from, to := ranges.Overlapping(p.pieces, (*object).bounds, lo, hi)
	if from == to {
		return nil
	}
	old := slices.Clone(p.pieces[from:to])
	p.pieces = slices.Delete(p.pieces, from, to)
	var out []pieceRange
	for _, o := range old {
		start, end := o.bounds()
		h.dropRef(p, o, h.now)
		if start < lo {
			h.addPiece(p, o.segmentOf, start, lo)
		}
		if end > hi {
			h.addPiece(p, o.segmentOf, hi, end)
		}
		out = append(out, pieceRange{o.segmentOf, max(start, lo), min(end, hi)})
	}
	return out
}

// addPiece adds a piece to a range that has none.
func (h *Heap) addPiece(p *process, r *pieceSegment, lo, hi uint64) {
	o := &object{addr: lo, size: hi - lo, touched: h.now, site: r.site, refs: 1, sort: event.ObjectMemory, segment: true, segmentOf: r}
	if r.expandable {
		o.sort = event.ObjectPhysical
	}
	at, _ := ranges.Overlapping(p.pieces, (*object).bounds, lo, hi)
	p.pieces = slices.Insert(p.pieces, at, o)
	h.settle(p, o)
}

// restorePieces puts a removed range back, unless other memory is there now.
func (h *Heap) restorePieces(p *process, d *DriverAccount, c pieceRange, time uint64) {
	if p.used(c.lo, c.hi) {
		d.LostFrees++
		return
	}
	lo, hi := c.lo, c.hi
	from, to := ranges.Overlapping(p.pieces, (*object).bounds, lo-1, hi+1)
	for _, o := range slices.Clone(p.pieces[from:to]) {
		if o.segmentOf == c.segmentOf {
			start, end := o.bounds()
			lo, hi = min(lo, start), max(hi, end)
			h.removePieces(p, start, end)
		}
	}
	h.addPiece(p, c.segmentOf, lo, hi)
}

// used reports whether a mapping or a piece overlaps [lo, hi), or memory begins there.
func (p *process) used(lo, hi uint64) bool {
	from, to := ranges.Overlapping(p.mappings, (*mapping).bounds, lo, hi)
	if from == to {
		from, to = ranges.Overlapping(p.pieces, (*object).bounds, lo, hi)
	}
	return from != to || p.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}][lo] != nil
}

// retireLostPieces retires the pieces in [lo, hi), where other memory is now, because their frees were lost.
func (h *Heap) retireLostPieces(p *process, lo, hi uint64) {
	from, to := ranges.Overlapping(p.pieces, (*object).bounds, lo, hi)
	for _, o := range slices.Clone(p.pieces[from:to]) {
		h.accountOf(o).LostFrees++
		h.removePieces(p, max(lo, o.addr), min(hi, o.addr+o.size))
	}
}
