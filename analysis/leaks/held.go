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

// HolderOf returns the holder of a block; empty: not known.
type HolderOf func(b *heap.Block) string

// HolderIn returns the holders of a scan that was joined with the live blocks; nil: no scan.
func HolderIn(j *view.Joined) HolderOf {
	if j == nil || j.Blocks == nil {
		return nil
	}
	return func(b *heap.Block) string { return j.Blocks[b.Key()].Holder }
}

// siteHolder is a site and a holder of its blocks.
type siteHolder struct {
	site   siteKey
	holder string
}

// heldSites adds up the live blocks of sites by holder. A line such as "trainer.train()" has sites with many holders.
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

// of returns the holders of the blocks of a finding, the most bytes first. Of a site that it shares with others it has its share of the
// blocks without a holder.
func (h heldSites) of(f *Finding) []Holder {
	sums := map[string]Holder{}
	for k, row := range h {
		if f.blocks[k.site] && !row.isIn(f.apart) {
			if share, shared := f.shares[k.site]; shared && !row.Named() {
				row.Bytes, row.Blocks = uint64(share*float64(row.Bytes)), uint64(share*float64(row.Blocks))
			}
			sum := sums[k.holder]
			sums[k.holder] = Holder{f.Sites[0], k.holder, sum.Bytes + row.Bytes, sum.Blocks + row.Blocks}
		}
	}
	out := slices.Collect(maps.Values(sums))
	sorts.Func(out, func(x, y Holder) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	return out
}

// HeldBy returns the holders of the live blocks of a finding, in the form for a recording; nil: not known. Blocks without a
// holder can be newer than the scan, so only as many are counted as the finding had when the scan was requested.
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

// Passing returns, in the form for a recording, the holders of blocks that were freed during a scan, and the other
// holders of the same sites; nil: none. A block without a holder is assumed to have replaced a freed one, so only those
// in excess of the freed ones count as unknown.
func Passing(j *view.Joined) (out []event.HeldRow) {
	if j == nil {
		return nil
	}
	seen := map[string]uint64{} // number of blocks by site
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

// siteOf returns the site of a block, as the detector defines it.
func (f *Finding) siteOf(b *heap.Block) siteKey {
	size := b.Requested
	if b.Layer != event.LayerAllocator || size == event.Unknown {
		size = b.Size
	}
	return siteKey{place{b.Layer, b.Device, b.PID}, b.Stack, sizeClass(size)}
}

// sizeClass returns the exponent of a size, rounded up to a power of two.
func sizeClass(bytes uint64) uint8 {
	return uint8(bits.Len64(max(bytes, 1) - 1))
}

// stacksOf returns the stacks of sites, in order.
func stacksOf(sites map[siteKey]bool) []event.StackID {
	var out []event.StackID
	for k := range sites {
		out = append(out, k.stack)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sharesOf returns the shares of sites that belong to several findings.
func sharesOf(g []risen) map[siteKey]float64 {
	out := map[siteKey]float64{}
	for i := range g {
		if part := &g[i].part; part.Blocks < part.Group {
			out[g[i].site] += part.Share()
		}
	}
	return out
}

// sitesOfGroup returns the sites that rise, or all sites of a line that is judged as a whole.
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
