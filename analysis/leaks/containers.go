// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks/internal/parts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// byContainer divides the rising sites of one line by the container that holds their blocks: a function that several places call has one
// line that allocates, and each caller may keep the results in a variable of its own. The largest part comes first. It also has the sites
// whose container is not known, and those that grow by less than 1/sharedPart of it. A line that is not divided has no parts.
func (d *detector) byContainer(g []risen, o *Options) (names []string, held map[string][]risen) {
	of := d.containersOf(g, o)
	held = map[string][]risen{}
	sums := map[string]float64{}
	var open []risen
	for i := range g {
		shares := of[g[i].site].Shares(int(math.Round(g[i].step.blocks * float64(g[i].period))))
		if len(shares) > 1 && !growTogether(shares, &g[i], o) {
			shares = nil
		}
		if shares == nil {
			open = append(open, g[i])
		}
		for _, s := range shares {
			if held[s.Root] == nil {
				names = append(names, s.Root)
			}
			part := g[i]
			part.trend, part.part = part.of(&s), s
			held[s.Root], sums[s.Root] = append(held[s.Root], part), sums[s.Root]+part.step.bytes
		}
	}
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(sums[y], sums[x]) })
	for len(names) > 1 && sharedPart*sums[names[len(names)-1]] < sums[names[0]] {
		least := names[len(names)-1]
		open, names = append(open, held[least]...), names[:len(names)-1]
	}
	if len(names) < 2 {
		return nil, nil
	}
	held[names[0]] = append(held[names[0]], open...)
	return names, held
}

// containersOf returns what is known of the containers of each rising site: the variable and its attributes, up to the first element. If
// single blocks were not read at the end, the last scan that names any decides, in which the size of their blocks tells the sites of a
// line apart.
func (d *detector) containersOf(g []risen, o *Options) containerSums {
	sums := containerSums{}
	for i := range g {
		if g[i].from != nil {
			sums[g[i].site] = &parts.Sum{Least: attributedFrom, Common: commonShare}
		}
	}
	known := false
	for k, h := range d.held {
		if s := sums[k.site]; s != nil && h.Named() {
			s.Add(h.Name, parts.Container{Blocks: h.Blocks, Bytes: h.Bytes})
			known = true
		}
	}
	if !known {
		sums.read(g, o)
	}
	return sums
}

// containerSums adds up the known blocks of sites by container.
type containerSums map[siteKey]*parts.Sum

// read adds the rows of the last scan that names any.
func (c containerSums) read(g []risen, o *Options) {
	for _, scan := range slices.Backward(o.scans()) {
		known := false
		for i := range g {
			s := c[g[i].site]
			for k := range scan {
				h := &scan[k]
				if s != nil && h.Named() && h.Blocks > 0 && h.Site == g[i].from.line.name() && sizeClass(h.Bytes/h.Blocks) == g[i].site.class {
					s.Add(h.Name, parts.Container{Blocks: h.Blocks, Bytes: h.Bytes})
					known = true
				}
			}
		}
		if known {
			return
		}
	}
}

// togetherShare is by how much the growth of containers between two scans may differ from their shares.
const togetherShare = 0.25

// growTogether reports whether containers have grown by their shares of a site, from the scan that found the fewest blocks to the one that
// found the most: one that is full, and another that grows, can have whole numbers of blocks by chance.
func growTogether(shares []parts.Share, r *risen, o *Options) bool {
	var first, most map[string]float64 // blocks by container
	low, top := math.Inf(1), 0.0
	for _, scan := range o.scans() {
		blocks, sum := map[string]float64{}, 0.0
		for i := range scan {
			h := &scan[i]
			root := varpath.Root(h.Name)
			known := slices.ContainsFunc(shares, func(s parts.Share) bool { return s.Root == root })
			if known && h.Blocks > 0 && h.Site == r.from.line.name() && sizeClass(h.Bytes/h.Blocks) == r.site.class {
				blocks[root] += float64(h.Blocks)
				sum += float64(h.Blocks)
			}
		}
		if sum > 0 && sum < low {
			first, low = blocks, sum
		}
		if sum > top {
			most, top = blocks, sum
		}
	}
	grown := top - low
	return grown > 0 && !slices.ContainsFunc(shares, func(s parts.Share) bool {
		return math.Abs(most[s.Root]-first[s.Root]-s.Share()*grown) > togetherShare*s.Share()*grown
	})
}

// wholeBlocks is how far a number of blocks may be from a whole one.
const wholeBlocks = 0.001

// of returns the share of a container in a rise.
func (t trend) of(s *parts.Share) trend {
	share := s.Share()
	part := func(f floor) floor {
		scaled := func(n int64) int64 { return int64(math.Round(float64(n) * share)) }
		return floor{Blocks: scaled(f.Blocks), Requested: scaled(f.Requested), Bytes: scaled(f.Bytes)}
	}
	t.step = amount{t.step.blocks * share, t.step.requested * share, t.step.bytes * share}
	t.rise, t.live = part(t.rise), part(t.live)
	t.period, t.periods = t.period*s.Periods, t.periods/s.Periods
	return t
}

// without returns the options without what scans found of a line in the containers of its other findings.
func (o *Options) without(names []string, line string) *Options {
	rest := func(scan []Holder) []Holder {
		return slices.DeleteFunc(slices.Clone(scan), func(h Holder) bool { return h.Site == line && h.isIn(names) })
	}
	out := *o
	out.Holders, out.Earlier = rest(o.Holders), nil
	for _, scan := range o.Earlier {
		out.Earlier = append(out.Earlier, rest(scan))
	}
	return &out
}

// periodOf returns the least period, steps, in which shares of sites amount to a whole number of blocks.
func periodOf(g []risen, period int, blocks float64) int {
	least := period
	for i := range g {
		if g[i].part.Periods > 1 {
			least = min(least, g[i].period/g[i].part.Periods)
		}
	}
	for p := least; p < period; p += least {
		if n := blocks * float64(p); math.Abs(n-math.Round(n)) < wholeBlocks {
			return p
		}
	}
	return period
}

// isIn reports whether one of some containers is what holds the blocks.
func (h *Holder) isIn(containers []string) bool {
	return slices.Contains(containers, varpath.Root(h.Name))
}
