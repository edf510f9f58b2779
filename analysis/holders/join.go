// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// heldKey is what the blocks of a row have in common.
type heldKey struct{ site, call, holder string }

// heldSums adds up the blocks of rows.
type heldSums struct {
	blocks map[heldKey][]int // numbers in the report; negative: not in it
	sizes  map[heldKey]view.HeldSite
}

func newHeldSums() *heldSums { return &heldSums{map[heldKey][]int{}, map[heldKey]view.HeldSite{}} }

// add adds block i of the report.
func (s *heldSums) add(key heldKey, i int, bytes uint64) {
	s.blocks[key] = append(s.blocks[key], i)
	row := s.sizes[key]
	row.Bytes, row.Blocks = row.Bytes+bytes, row.Blocks+1
	s.sizes[key] = row
}

// beforeKey is what the blocks of a part of what was allocated before the first event have in common.
type beforeKey struct {
	pid    uint32
	device event.Device
	holder string
}

// Join finds the holders of a recording's live torch blocks: those of heap.Heap.Blocks. The heap must have applied all events
// up to the end of the report (its Time and Stats.Confirm), so that a block which was freed meanwhile is not in it any more;
// what is younger than the report has no holder in it. Blocks of other processes than the report's are left out.
func (h *Index) Join(v *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
	var bytes uint64
	names := siteNames(v)
	rows, calls := newHeldSums(), newHeldSums()
	before := map[beforeKey]figures.HeldBefore{}
	held := map[heap.BlockKey]view.HeldBlock{}
	for b := range blocks {
		if b.Layer != event.LayerAllocator || b.PID != uint32(h.Report.PID) {
			continue
		}
		i, holder := h.holderOf(&b)
		name := names[siteOf(&b)]
		rows.add(heldKey{name.Site, "", holder}, i, b.Size)
		if name.Call != "" {
			calls.add(heldKey{name.Site, name.Call, holder}, i, b.Size)
		}
		bytes += b.Size
		if i >= 0 {
			held[b.Key()] = h.heldBlock(i)
		}
		if b.Origin == heap.OriginBefore {
			part := figures.HeldBefore{PID: b.PID, Device: b.Device, HeldPart: figures.HeldPart{Holder: holder, Bytes: b.Size, Blocks: 1}}
			had := before[beforeKey{b.PID, b.Device, holder}]
			part.Bytes, part.Blocks = part.Bytes+had.Bytes, part.Blocks+had.Blocks
			before[beforeKey{b.PID, b.Device, holder}] = part
		}
	}
	j := view.NewJoined(slices.Collect(maps.Values(before)))
	j.Facts = h.Facts()
	j.Bytes, j.Rows, j.Calls, j.Blocks = bytes, h.heldSites(bytes, rows), h.heldSites(0, calls), held
	return j
}

// heldBlock is what holds block i of the report.
func (h *Index) heldBlock(i int) view.HeldBlock {
	b := h.block(i)
	return view.HeldBlock{Holder: h.owners[i], Name: b.Name(), Category: phases.OfHolder(b.Category.String()), Bytes: b.Size}
}

// holderOf is the number in the report of a live block, negative when it is not the same one there, and its holder.
func (h *Index) holderOf(b *heap.Block) (int, string) {
	i, ok := h.index[b.Addr]
	if n := h.places.of(b, math.MaxUint64); n >= 0 && (!ok || h.Report.Blocks[i].Size != b.Size || b.Time > h.Report.Time) {
		return len(h.Report.Blocks) + n, h.owners[len(h.Report.Blocks)+n]
	}
	if !ok || h.Report.Blocks[i].Size != b.Size || b.Time > h.Report.Time || unnamed(&h.Report.Blocks[i]) {
		return -1, view.NoHolder
	}
	return i, h.owners[i]
}

// heldSites is the rows, by bytes, largest first.
func (h *Index) heldSites(bytes uint64, rows *heldSums) []view.HeldSite {
	var out []view.HeldSite
	for key, of := range rows.blocks {
		row := rows.sizes[key]
		row.Site, row.Call, row.Name, row.Holder = key.site, key.call, key.holder, key.holder
		if key.holder != view.NoHolder {
			row.What = h.what(of)
			row.Where, row.Holder = splitName(key.holder, h.block(of[0]).Path)
		}
		if bytes > 0 {
			row.Share = float64(row.Bytes) / float64(bytes)
		}
		out = append(out, row)
	}
	sorts.Func(out, func(x, y view.HeldSite) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site), cmp.Compare(x.Call, y.Call),
			cmp.Compare(x.Name, y.Name))
	})
	return out
}

// siteKey is what tells the site of a block.
type siteKey struct {
	device  event.Device
	stack   event.StackID
	call    string
	segment bool
	origin  heap.Origin
	pid     uint32
}

func siteOf(b *heap.Block) siteKey {
	return siteKey{b.Device, b.Stack, b.Call, b.Segment, b.Origin, b.PID}
}

// siteNames are the names of the torch layer's sites.
func siteNames(v *view.View) map[siteKey]view.SiteCall {
	out := map[siteKey]view.SiteCall{}
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.Layer == event.LayerAllocator {
			out[siteKey{s.Device, s.Site.Stack, s.Call, s.Site.Segment, s.Origin, s.PID}] = view.SiteCall{Site: s.Name, Call: v.Call(s)}
		}
	}
	return out
}
