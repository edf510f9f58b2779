// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// placeIndex finds the places of a report by the memory of what they held.
type placeIndex struct {
	all    []scan.Place
	blocks []scan.Block // what is known of the block of each
	at     map[uint64][]int
}

func newPlaces(all []scan.Place) placeIndex {
	p := placeIndex{all: all, at: map[uint64][]int{}}
	for i := range all {
		b := scan.Block{Path: all[i].Path, Category: scan.CategoryTensor, Confirmed: true}
		b.Addr, b.Size = all[i].Addr, all[i].Size
		p.blocks = append(p.blocks, b)
		p.at[b.Addr] = append(p.at[b.Addr], i)
	}
	return p
}

// of is the place that held a block that was live from one time to another; negative: none did. The first of several reads best.
func (p *placeIndex) of(b *heap.Block, to uint64) int {
	for _, i := range p.at[b.Addr] {
		if place := &p.all[i]; b.Time <= place.Time && place.Time < to && place.Size <= b.Size {
			return i
		}
	}
	return -1
}

// block is block i of the report or, beyond those, what is known of the block of a place.
func (h *Index) block(i int) *scan.Block {
	if n := len(h.Report.Blocks); i >= n {
		return &h.places.blocks[i-n]
	}
	return &h.Report.Blocks[i]
}

// Freed is a block that was freed while holders were read.
type Freed struct {
	heap.Block
	At uint64 // CLOCK_BOOTTIME, nanoseconds
}

// Held reports whether a block that was freed at a time was seen at a place before: Passing needs it.
func (h *Index) Held(b *heap.Block, freed uint64) bool {
	return b.Layer == event.LayerAllocator && b.PID == uint32(h.Report.PID) && h.places.of(b, freed) >= 0
}

// Passing adds up the blocks that were freed while holders were read, by site and holder: of a tensor that is
// replaced at each step no block outlasts a reading.
func (h *Index) Passing(v *view.View, freed []Freed) []view.HeldSite {
	names := siteNames(v)
	rows, bytes := newHeldSums(), uint64(0)
	for i := range freed {
		g := &freed[i]
		if !h.Held(&g.Block, g.At) {
			continue
		}
		n := len(h.Report.Blocks) + h.places.of(&g.Block, g.At)
		rows.add(heldKey{names[siteOf(&g.Block)].Site, "", h.owners[n]}, n, g.Size)
		bytes += g.Size
	}
	return h.heldSites(bytes, rows)
}
