// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"iter"
	"math/bits"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
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

// of is what holds the blocks of a finding, by holder.
func (h heldSites) of(f *Finding) []Holder {
	var out []Holder
	for k, row := range h {
		if f.blocks[k.site] {
			row.Site = f.Sites[0]
			out = append(out, row)
		}
	}
	return out
}

// HeldBy is what holds the live blocks of a finding.
func HeldBy(f *Finding, live iter.Seq[heap.Block], of HolderOf) []Holder {
	held := heldSites{}
	for b := range live {
		if k := f.siteOf(&b); counts(&b) && f.blocks[k] {
			held.add(k, &b, of(&b))
		}
	}
	return held.of(f)
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

// From reports whether memory that was allocated with a stack is, or may be, of the finding: blocks of another size can have the same one.
func (f *Finding) From(stack event.StackID) bool {
	for k := range f.blocks {
		if k.stack == stack {
			return true
		}
	}
	return false
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
