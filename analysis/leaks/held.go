// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"iter"
	"maps"
	"math/bits"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// HolderOf says what holds a block; empty: that is not known.
type HolderOf func(b *heap.Block) string

// HolderIn is what a reading says that was brought together with the live blocks; nil: there was none.
func HolderIn(j *view.Joined) HolderOf {
	if j == nil || j.Blocks == nil {
		return nil
	}
	return func(b *heap.Block) string { return j.Blocks[b.Key()].Holder }
}

// siteHolder is a site, and what holds blocks of it.
type siteHolder struct {
	site   siteKey
	holder string
}

// heldSites adds up what holds the live blocks of sites. A line of a framework's job, "trainer.train()", has sites with many holders.
type heldSites map[siteHolder]Holder

func (h heldSites) add(site siteKey, b *heap.Block, holder string) {
	if holder == "" {
		holder = view.NoHolder
	}
	k := siteHolder{site, holder}
	row := h[k]
	row.Name, row.Blocks, row.Bytes = holder, row.Blocks+1, row.Bytes+b.Size
	h[k] = row
}

// hold adds up the holders of live blocks.
func (d *detector) hold(live iter.Seq[heap.Block], of HolderOf) {
	d.held = heldSites{}
	for b := range live {
		if counts(&b) {
			_, site := d.key(&b)
			d.held.add(site, &b, of(&b))
		}
	}
}

// of is what holds the blocks of a finding, by holder, the most bytes first.
func (h heldSites) of(f *Finding) []Holder {
	sums := map[string]Holder{}
	for k, row := range h {
		if f.blocks[k.site] {
			sum := sums[k.holder]
			sums[k.holder] = Holder{f.Sites[0], k.holder, sum.Bytes + row.Bytes, sum.Blocks + row.Blocks}
		}
	}
	out := slices.Collect(maps.Values(sums))
	sorts.Func(out, func(x, y Holder) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	return out
}

// HeldBy is what holds the live blocks of a finding, as a recording keeps it; nil: none of it is known. Blocks without a holder can be newer
// than the reading: only as many count as the finding had when it was asked for.
func HeldBy(f *Finding, live iter.Seq[heap.Block], of HolderOf) []event.HeldRow {
	if of == nil {
		return nil
	}
	held := heldSites{}
	for b := range live {
		if k := f.siteOf(&b); counts(&b) && f.blocks[k] {
			held.add(k, &b, of(&b))
		}
	}
	var out []event.HeldRow
	var blocks, bytes uint64
	for _, h := range held.of(f) {
		if h.Name != view.NoHolder {
			out = append(out, event.HeldRow{Site: h.Site, Holder: h.Name, Bytes: h.Bytes, Blocks: h.Blocks})
			blocks, bytes = blocks+h.Blocks, bytes+h.Bytes
		}
	}
	if f.LiveBlocks > blocks && len(out) > 0 {
		out = append(out, event.HeldRow{Site: out[0].Site, Blocks: f.LiveBlocks - blocks, Bytes: f.LiveBytes - min(f.LiveBytes, bytes)})
	}
	return out
}

// Passing is what holds blocks of sites that were freed while a reading went on, as a recording keeps it, with all else that it says of these
// sites; nil: there is none. A block without a holder is taken for the one that followed: only what is more than those that were seen is open.
func Passing(j *view.Joined) (out []event.HeldRow) {
	if j == nil {
		return nil
	}
	seen := map[string]uint64{} // blocks, by site
	for i := range j.Passing {
		if r := &j.Passing[i]; r.Site != "" {
			seen[r.Site] += r.Blocks
			out = append(out, event.HeldRow{Site: r.Site, Holder: r.Name, Bytes: r.Bytes, Blocks: r.Blocks})
		}
	}
	for i := range j.Rows {
		r := &j.Rows[i]
		switch n := seen[r.Site]; {
		case n == 0:
		case r.Name != view.NoHolder:
			out = append(out, event.HeldRow{Site: r.Site, Holder: r.Name, Bytes: r.Bytes, Blocks: r.Blocks})
		case r.Blocks > n:
			out = append(out, event.HeldRow{Site: r.Site, Bytes: r.Bytes / r.Blocks * (r.Blocks - n), Blocks: r.Blocks - n})
		}
	}
	return out
}

// siteOf is the site of a block, as the detector has it.
func (f *Finding) siteOf(b *heap.Block) siteKey {
	size := b.Requested
	if b.Layer != event.LayerTorch || size == event.Unknown {
		size = b.Size
	}
	return siteKey{place{b.Layer, b.Device, b.PID}, b.Stack, sizeClass(size)}
}

// sizeClass is the power of two of a size, rounded up.
func sizeClass(bytes uint64) uint8 {
	return uint8(bits.Len64(max(bytes, 1) - 1))
}

// stacksOf are the stacks of sites, in order.
func stacksOf(sites map[siteKey]bool) []event.StackID {
	var out []event.StackID
	for k := range sites {
		out = append(out, k.stack)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sitesOfGroup are the sites that rise, or of a line that is judged as a whole, all of it.
func (d *detector) sitesOfGroup(k lineKey, g []risen) map[siteKey]bool {
	out := map[siteKey]bool{}
	for i := range g {
		if g[i].from != nil {
			out[g[i].site] = true
			continue
		}
		for site, s := range d.sites {
			if site.place == k.place && s.source.line == k.line {
				out[site] = true
			}
		}
	}
	return out
}
