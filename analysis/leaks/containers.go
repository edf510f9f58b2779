// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/internal/varpath"
)

// byContainer divides the rising sites of one line by the container that holds their blocks: a function that several places call has one
// line that allocates, and each caller may keep the results in a variable of its own. The largest part comes first. It also has the sites
// whose container is not known, and those that grow by less than 1/sharedPart of it. A line that is not divided has no parts.
func (d *detector) byContainer(g []risen, o *Options) (names []string, parts map[string][]risen) {
	if len(g) < 2 {
		return nil, nil
	}
	of := d.containersOf(g, o)
	parts = map[string][]risen{}
	sums := map[string]float64{}
	var open []risen
	for i := range g {
		name := of[g[i].site]
		if g[i].from == nil || name == "" {
			open = append(open, g[i])
			continue
		}
		if parts[name] == nil {
			names = append(names, name)
		}
		parts[name], sums[name] = append(parts[name], g[i]), sums[name]+g[i].step.bytes
	}
	slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(sums[y], sums[x]) })
	for len(names) > 1 && sharedPart*sums[names[len(names)-1]] < sums[names[0]] {
		least := names[len(names)-1]
		open, names = append(open, parts[least]...), names[:len(names)-1]
	}
	if len(names) < 2 {
		return nil, nil
	}
	parts[names[0]] = append(parts[names[0]], open...)
	return names, parts
}

// containersOf returns the container of each rising site: the variable and its attributes, up to the first element. A site is left out if
// its blocks have several, or too few a known one. If single blocks were not read at the end, the last scan that names any decides, in
// which the size of their blocks tells the sites of a line apart.
func (d *detector) containersOf(g []risen, o *Options) map[siteKey]string {
	sums := containerSums{}
	for i := range g {
		if g[i].from != nil {
			sums[g[i].site] = &containerSum{roots: map[string]Holder{}}
		}
	}
	known := false
	for k, h := range d.held {
		if s := sums[k.site]; s != nil && h.Named() {
			s.add(&h)
			known = true
		}
	}
	if !known {
		sums.read(g, o)
	}
	out := map[siteKey]string{}
	for site, s := range sums {
		if root := s.most(); root != "" {
			out[site] = root
		}
	}
	return out
}

// containerSum adds up the known blocks of a site by container.
type containerSum struct {
	bytes uint64
	roots map[string]Holder
}

type containerSums map[siteKey]*containerSum

// read adds the rows of the last scan that names any.
func (c containerSums) read(g []risen, o *Options) {
	for _, scan := range slices.Backward(o.scans()) {
		known := false
		for i := range g {
			s := c[g[i].site]
			for k := range scan {
				h := &scan[k]
				if s != nil && h.Named() && h.Blocks > 0 && h.Site == g[i].from.line.name() && sizeClass(h.Bytes/h.Blocks) == g[i].site.class {
					s.add(h)
					known = true
				}
			}
		}
		if known {
			return
		}
	}
}

// add adds blocks that have a holder. A graph's blocks belong to every tensor that leads to them, and the blocks of a traceback to every
// variable of its frames: neither has a container.
func (s *containerSum) add(h *Holder) {
	s.bytes += h.Bytes
	root := varpath.Root(h.Name)
	if _, raised := varpath.Raised(h.Name); raised || root == h.Name || varpath.HoldsGraph(h.Name) {
		return
	}
	sum := s.roots[root]
	s.roots[root] = Holder{Bytes: sum.Bytes + h.Bytes, Blocks: sum.Blocks + h.Blocks}
}

// most returns the container of nearly all blocks; empty: not known.
func (s *containerSum) most() string {
	for root, sum := range s.roots {
		if sum.Blocks >= attributedFrom && float64(sum.Bytes) >= commonShare*float64(s.bytes) {
			return root
		}
	}
	return ""
}

// without returns the options without what scans found of a line in the containers of its other findings.
func (o *Options) without(names []string, line string) *Options {
	rest := func(scan []Holder) []Holder {
		return slices.DeleteFunc(slices.Clone(scan), func(h Holder) bool {
			return h.Site == line && slices.Contains(names, varpath.Root(h.Name))
		})
	}
	out := *o
	out.Holders, out.Earlier = rest(o.Holders), nil
	for _, scan := range o.Earlier {
		out.Earlier = append(out.Earlier, rest(scan))
	}
	return &out
}
