// SPDX-License-Identifier: Apache-2.0

package fragments

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Names says of a block where it was allocated and what holds it; an empty holder: not known.
type Names func(m *Map, b *Block) (site, holder string)

// NamesOf are the names of a trace: sites by their stacks; holders by what was found at the end for blocks that are in use then, else by
// the last reading of holders at or before the moment, for a line that one holder has.
func NamesOf(t *view.Trace) Names {
	return func(m *Map, b *Block) (string, string) {
		known := m.Block(b)
		site := t.SiteName(&known)
		if held, ok := t.Holder(&known); ok && held.Holder != "" {
			return site, held.Holder
		}
		return site, readHolder(t.Held(), site, m.Time)
	}
}

// readHolder is what held the blocks of a line when that was read last up to a time; empty: not known, or there were several.
func readHolder(readings []event.Held, site string, until uint64) string {
	for i := len(readings) - 1; i >= 0; i-- {
		if readings[i].Time > until {
			continue
		}
		found := ""
		for _, r := range readings[i].Rows {
			if r.Site != site || r.Holder == "" {
				continue
			}
			if found != "" && found != r.Holder {
				return ""
			}
			found = r.Holder
		}
		if found != "" {
			return found
		}
	}
	return ""
}

// Block is a block as the live set has it.
func (m *Map) Block(b *Block) heap.Block {
	return heap.Block{
		PID: m.PID, Layer: event.LayerAllocator, Device: m.Device, Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: event.Unknown,
		Time: b.Time, Stack: b.Stack, Origin: b.Origin,
	}
}

// Know adds what a layout knows of the blocks: stacks and times, by address and size.
func (m *Map) Know(of *Map) {
	type extent struct{ addr, size uint64 }
	known := map[extent]*Block{}
	for i := range of.Segments {
		for _, b := range of.Segments[i].Pins() {
			known[extent{b.Addr, b.Size}] = b
		}
	}
	for i := range m.Segments {
		for _, b := range m.Segments[i].Pins() {
			if k := known[extent{b.Addr, b.Size}]; k != nil {
				b.Stack, b.Time, b.Origin = k.Stack, k.Time, k.Origin
			}
		}
	}
}

// Pin is blocks of one site and holder that keep segments from being returned.
type Pin struct {
	Site     string
	Holder   string // empty: not known
	Blocks   uint64
	Bytes    uint64
	Segments uint64 // in how many
	Stranded uint64 // bytes of inactive splits of these segments; a segment with several pins counts for each
	Oldest   uint64 // time of the first allocation, CLOCK_BOOTTIME nanoseconds; 0: not known
}

// Age is how old the oldest block is at a time, nanoseconds; event.Unknown.
func (p *Pin) Age(now uint64) uint64 {
	if p.Oldest == 0 || now < p.Oldest {
		return event.Unknown
	}
	return now - p.Oldest
}

// Pins adds up what keeps segments from being returned, by site and holder: the most inactive bytes first. segments nil: all stranded
// ones of the report.
func (r *Report) Pins(m *Map, names Names, segments []Stranded) []Pin {
	if segments == nil {
		segments = r.Stranded
	}
	type key struct{ site, holder string }
	found := map[key]*Pin{}
	for i := range segments {
		s := &segments[i]
		seen := map[*Pin]bool{}
		for _, b := range s.Pins() {
			site, holder := names(m, b)
			p := found[key{site, holder}]
			if p == nil {
				p = &Pin{Site: site, Holder: holder, Oldest: b.Time}
				found[key{site, holder}] = p
			}
			p.Blocks, p.Bytes = p.Blocks+1, p.Bytes+b.Size
			p.Oldest = min(p.Oldest, b.Time)
			if !seen[p] {
				seen[p] = true
				p.Segments, p.Stranded = p.Segments+1, p.Stranded+s.Inactive
			}
		}
	}
	var out []Pin
	for _, p := range found {
		out = append(out, *p)
	}
	sorts.Func(out, func(x, y Pin) int {
		return cmp.Or(cmp.Compare(y.Stranded, x.Stranded), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site),
			cmp.Compare(x.Holder, y.Holder))
	})
	return out
}
