// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"maps"
	"slices"
	"time"

	"github.com/gputrace/gputrace/cpython"
)

// The second reading takes milliseconds, in which a program can let a list go and make another one in its place: then both links
// hold, each at its moment, of a path that never was. So the pages of a few paths at a time are read in one burst of
// microseconds, and at once again. What both show was true between them: for a false path the program would have to do the same
// thing twice, each time within a burst and between the same two pages of it.
const (
	proofBlocks = 32 // paths that are proved together, at least
	proofGroups = 64 // groups of all blocks, at most: each costs the pages of what all paths have in common
	proofTries  = 8
	proofPages  = 1 << 14 // of one group, 64 MiB
	// burstLimit is how long a burst may take for each page of it: a few times what it does when nothing interrupts it.
	burstLimit = 5 * time.Microsecond
	burstSpare = 200 * time.Microsecond
	// On a slow machine, an emulated one for example, no burst is that fast: after slowTries one may take slowFactor times as
	// long for a page as the fastest of all.
	slowTries  = 3
	slowFactor = 2
)

// claim is a path that is to be proved.
type claim struct {
	block  int
	chosen *candidate
	keys   []uint64 // objects that are called by a path of their own within it
	path   Path     // of a further path
}

// proof proves paths.
type proof struct {
	a      *assembly
	scout  *image    // tells which pages a path needs
	bursts [2]*image // have these pages, twice
	pages  map[uint64]bool
	pace   time.Duration // of the fastest burst, for a page; 0: there was none
	slow   int           // bursts in a row that took longer than they should
}

// prove proves what was chosen for the blocks, and gives the blocks for which that failed.
func (a *assembly) prove(claims []claim) (failed []claim, err error) {
	p := &proof{a: a}
	for _, im := range []**image{&p.scout, &p.bursts[0], &p.bursts[1]} {
		if *im, err = newImage(a.p, a.now.t.im.regions, proofPages); err != nil {
			return claims, err
		}
		defer (*im).close()
		(*im).near, (*im).tracked = true, true
	}
	size := max(proofBlocks, (len(claims)+proofGroups-1)/proofGroups)
	for group := range slices.Chunk(claims, size) {
		failed = append(failed, p.group(group)...)
	}
	for _, im := range []*image{p.scout, p.bursts[0], p.bursts[1]} {
		a.report.Stats.BytesRead += im.bytes
	}
	return failed, nil
}

// group proves some paths, and gives those that could not be.
func (p *proof) group(claims []claim) []claim {
	open := slices.Clone(claims)
	p.pages = map[uint64]bool{}
	for n := 0; n < proofTries && len(open) > 0; n++ {
		p.look(open)
		if !p.burst() {
			continue
		}
		now := time.Now()
		first, second := p.a.now.on(p.bursts[0]), p.a.now.on(p.bursts[1])
		open = slices.DeleteFunc(open, func(c claim) bool {
			if !p.a.stands(first, &c) || !p.a.stands(second, &c) {
				return false
			}
			p.a.confirms[c.block] = now
			return true
		})
		p.a.now.last = now
	}
	return open
}

// look follows the paths once, to learn which pages they need.
func (p *proof) look(claims []claim) {
	p.scout.forget()
	p.scout.memory = p.a.p
	on := p.a.now.on(p.scout)
	for i := range claims {
		p.a.stands(on, &claims[i])
	}
	for _, addr := range p.scout.order {
		p.pages[addr] = true
	}
}

// burst reads the pages twice. It is false when that took longer than it should.
func (p *proof) burst() bool {
	order := slices.Sorted(maps.Keys(p.pages))
	for _, im := range p.bursts {
		im.forget()
		im.memory = p.a.p
		begun := time.Now()
		for at := 0; at < len(order); {
			end := at + 1
			for end < len(order) && order[end] == order[end-1]+pageSize {
				end++
			}
			im.load(order[at], uint64(end-at))
			at = end
		}
		im.memory = nil // the rest was not read at that moment
		if !p.quick(time.Since(begun), max(len(order), 1)) {
			return false
		}
	}
	return true
}

// quick reports whether a burst of some pages did not take longer than it should.
func (p *proof) quick(took time.Duration, pages int) bool {
	pace := took / time.Duration(pages)
	if p.pace == 0 || pace < p.pace {
		p.pace = max(pace, 1)
	}
	if took <= burstSpare+time.Duration(pages)*burstLimit || p.slow >= slowTries && pace <= slowFactor*p.pace {
		p.slow = 0
		return true
	}
	p.slow++
	return false
}

// stands reports whether a path leads to its block, in what was read at some moment.
func (a *assembly) stands(now *again, c *claim) bool {
	b := &a.live.blocks[c.block]
	if !now.uses(&a.targets[c.chosen.target], b) || !a.leadsIn(now, c.chosen) {
		return false
	}
	for _, key := range c.keys {
		n, _ := a.walk.index.get(key)
		_, own := a.targetOf[n-1]
		k := a.keys[n-1]
		switch {
		case own && k.best == nil, own && !a.leadsIn(now, k.best), !own && !now.path(n-1):
			return false
		}
	}
	return true
}

// keysOf lists the objects in a path that have paths of their own.
func keysOf(out []uint64, p Path) []uint64 {
	for i := range p {
		if s := &p[i]; len(s.KeyPath) > 0 {
			out = keysOf(append(out, s.KeyAddr), s.KeyPath)
		}
	}
	return out
}

// on looks at another image, of one moment.
func (a *again) on(im *image) *again {
	classes := *a.t.classes
	classes.im, classes.fixed = im, im.memory == nil
	n := *a.t.natives
	n.classes = &classes
	t := *a.t
	t.natives = &n
	out := &again{r: a.r, t: &t, roots: a.roots, links: map[linkKey]bool{}, paths: map[uint32]bool{}, sources: map[uint64][]cpython.Ref{}}
	if t.heap != nil {
		out.running = t.heap.RunningFrames(im)
	}
	return out
}
