// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"maps"
	"slices"
	"time"

	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
)

// The second reading takes milliseconds, in which a program can let a list go and make another one in its place: then both links
// hold, each at its moment, of a path that never was. So the pages of a few paths at a time are read in one burst of
// microseconds, and at once again. What both show was true between them: for a false path the program would have to do the same
// thing twice, each time within a burst and between the same two pages of it.
const (
	proofBlocks = 32 // paths that are proved together, at least
	proofGroups = 64 // groups of all blocks, at most: each costs the pages of what all paths have in common
	proofTries  = 8
	// brokenTries is how often a group is read where functions were called while frames were followed: a program that does nothing else.
	brokenTries = 32
	splitAfter  = 2       // tries without a burst that was quick enough, after which half as many paths are proved together
	proofPages  = 1 << 14 // of one group, 64 MiB
	maxAsked    = 32      // times in one reading that what is mapped is asked for, which takes milliseconds
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
	shape  string   // see Path.shape
}

// proof proves paths.
type proof struct {
	a      *assembly
	scout  *memory.Image    // tells which pages a path needs
	bursts [2]*memory.Image // have these pages, twice
	pages  map[uint64]bool
	pace   time.Duration // of the fastest burst, for a page; 0: there was none
	slow   int           // bursts in a row that took longer than they should
	size   int           // paths that are proved together
	renews bool          // ask what is mapped before the next look
	asked  int           // how often that was asked

	between uint64 // when both bursts had not been read and one had, on the clock of Report.Time
}

// prove proves what was chosen for the blocks, and gives those for which that failed, and those that are left when the time is over.
func (a *assembly) prove(claims []claim, end time.Time) (failed, late []claim, err error) {
	p, err := a.newProof()
	if err != nil {
		return nil, nil, err
	}
	defer p.close()
	p.size = max(proofBlocks, (len(claims)+proofGroups-1)/proofGroups)
	for len(claims) > 0 && time.Now().Before(end) {
		n := min(p.size, len(claims))
		failed = append(failed, p.group(claims[:n])...)
		claims = claims[n:]
	}
	return failed, claims, nil
}

// newProof prepares the images that a proof reads into; close gives them back.
func (a *assembly) newProof() (p *proof, err error) {
	p = &proof{a: a}
	for _, im := range []**memory.Image{&p.scout, &p.bursts[0], &p.bursts[1]} {
		if *im, err = memory.NewProbe(a.ctx, a.p, a.now.Reader().Image().Regions(), proofPages); err != nil {
			p.close()
			return nil, err
		}
	}
	p.scout.OnRenew(a.mapped) // the elements of a list that grows move to memory that was not mapped before
	return p, nil
}

func (p *proof) close() {
	for _, im := range []*memory.Image{p.scout, p.bursts[0], p.bursts[1]} {
		if im != nil {
			p.a.report.Stats.BytesRead += im.BytesRead()
			im.Close()
		}
	}
}

// group proves some paths, and returns those that could not be.
func (p *proof) group(claims []claim) []claim {
	open := slices.Clone(claims)
	p.pages = map[uint64]bool{}
	for n, broken := 0, 0; n < proofTries && len(open) > 0; n++ {
		p.look(func(on *objgraph.Recheck) {
			for i := range open {
				p.a.stands(on, &open[i])
			}
		})
		if !p.burst() {
			if half := len(open) / 2; n+1 >= splitAfter && half >= proofBlocks {
				p.size = min(p.size, half)
				return append(p.group(open[:half]), p.group(open[half:])...)
			}
			continue
		}
		now := time.Now()
		first, second := p.shown()
		open = slices.DeleteFunc(open, func(c claim) bool {
			if !p.a.stands(first, &c) || !p.a.stands(second, &c) {
				return false
			}
			p.a.confirms[c.block] = now
			return true
		})
		p.a.now.Proved(now)
		if broken++; first.Broken() && second.Broken() && broken < brokenTries {
			n--
		}
	}
	return open
}

// shown is what the two bursts show, as readings that help each other.
func (p *proof) shown() (first, second *objgraph.Recheck) {
	first, second = p.a.now.On(p.bursts[0]), p.a.now.On(p.bursts[1])
	first.Pair(second)
	return first, second
}

// look follows paths once, to learn which pages they need.
func (p *proof) look(follow func(on *objgraph.Recheck)) {
	p.forget()
	follow(p.a.now.On(p.scout))
	for _, addr := range p.scout.Pages() {
		p.pages[addr] = true
	}
}

// forget prepares for a new look. If something was missing in the look before, it first asks what the process has mapped
// by now.
func (p *proof) forget() {
	p.scout.Forget()
	if p.renews && p.asked < maxAsked {
		p.scout.Renew()
		p.asked++
	}
	p.renews = false
}

// burst reads the pages twice. It is false when that took longer than it should, and the process ran meanwhile: what sleeps does not
// change, however slow the machine is. Whether it sleeps is only asked when the burst before was slow.
func (p *proof) burst() bool {
	order := slices.Sorted(maps.Keys(p.pages))
	var before stop.Asleep
	if p.slow > 0 {
		before = p.a.p.asleep()
	}
	quick := true
	for i, im := range p.bursts {
		if i == 1 {
			p.between = p.a.p.clock()
		}
		took := im.ReadOnce(p.a.p, order)
		quick = p.quick(took, max(len(order), 1)) && quick
		if !quick && before == nil {
			return false
		}
	}
	return quick || before.Until(p.a.p.asleep())
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
func (a *assembly) stands(now *objgraph.Recheck, c *claim) bool {
	b := &a.live.blocks[c.block]
	if !a.uses(now.Reader(), &a.targets[c.chosen.target], b) || !a.leadsIn(now, c.chosen) {
		return false
	}
	for _, key := range c.keys {
		n, _ := a.graph.Number(key)
		_, own := a.targetOf[n]
		k := a.keys[n]
		switch {
		case own && k.best == nil, own && !a.leadsIn(now, k.best), !own && !now.Path(n):
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
