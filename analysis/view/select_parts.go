// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// split splits the sites of a view into their parts. What the parts leave out, or where they have too much, is a part of which nothing
// more is known: a site is always what the heap says.
func (p *Picker) split(v *View) {
	parts := p.bySite()
	for i := range v.Sites {
		s := &v.Sites[i]
		s.Parts = completed(parts[idOf(&v.Snapshot.Sites[i])], s)
		if !v.detailed {
			continue
		}
		for j := range s.Parts {
			s.Parts[j].Category = cmp.Or(s.Parts[j].Category, phases.NoCategory)
		}
	}
}

// completed adds what is missing to make up a site.
func completed(parts []SitePart, s *Site) []SitePart {
	var alloc, inuse heap.Count
	for i := range parts {
		alloc, inuse = alloc.Plus(parts[i].Alloc), inuse.Plus(parts[i].Inuse)
	}
	rest := SitePart{Stream: event.Unknown, Size: event.Unknown, Age: event.Unknown, Alloc: s.Alloc, Inuse: s.Inuse}
	if !s.Alloc.Contains(alloc) || !s.Inuse.Contains(inuse) {
		return []SitePart{rest}
	}
	rest.Alloc, rest.Inuse = s.Alloc.Minus(alloc), s.Inuse.Minus(inuse)
	if rest.Alloc.Objects+rest.Inuse.Objects > 0 {
		parts = append(parts, rest)
	}
	return parts
}

func sortParts(parts []SitePart) {
	sorts.Func(parts, func(x, y SitePart) int {
		return cmp.Or(cmp.Compare(y.Inuse.Bytes, x.Inuse.Bytes), cmp.Compare(y.Alloc.Bytes, x.Alloc.Bytes), cmp.Compare(x.Size, y.Size),
			cmp.Compare(x.TID, y.TID), cmp.Compare(x.Stream, y.Stream), cmp.Compare(x.Age, y.Age), cmp.Compare(x.Step, y.Step),
			cmp.Compare(x.Category, y.Category), cmp.Compare(x.Holder, y.Holder))
	})
}

// reduce makes a view of the parts alone: what is left out is in no count.
func (p *Picker) reduce(v *View) {
	parts := p.bySite()
	s := *v.Snapshot
	s.Accounts = slices.Clone(s.Accounts)
	v.Snapshot = &s
	for i := range s.Accounts {
		p.reduceAccount(&s.Accounts[i], v.Sites)
	}
	for i := range v.Sites {
		site := &v.Sites[i]
		site.Alloc, site.Inuse = heap.Count{}, heap.Count{}
		site.Parts = parts[idOf(&s.Sites[i])]
		for _, part := range site.Parts {
			site.Alloc, site.Inuse = site.Alloc.Plus(part.Alloc), site.Inuse.Plus(part.Inuse)
		}
		if site.Layer != event.LayerAllocator {
			continue
		}
		for j := range s.Accounts {
			if a := &s.Accounts[j]; a.PID == site.PID && a.Device == site.Device {
				countSelected(a, site)
			}
		}
	}
	for i := range s.Accounts {
		if a := &s.Accounts[i]; a.Allocated != event.Unknown {
			a.Allocated = uint64(int64(a.Live.Bytes+a.Before) + a.Lost)
		}
	}
}

// reduceAccount leaves what of an account's total is not in blocks, of which no size is known. A range has none of it.
func (p *Picker) reduceAccount(a *heap.Account, sites []Site) {
	for i := range sites {
		s := &sites[i]
		if s.Layer == event.LayerAllocator && s.Origin == heap.OriginBefore && s.PID == a.PID && s.Device == a.Device &&
			a.Before != event.Unknown {
			a.Before -= min(a.Before, s.Inuse.Bytes)
		}
	}
	if p.s.To != 0 {
		a.Before, a.Lost = 0, 0
	}
	a.Live, a.BeforeBlocks, a.Recovered = heap.Count{}, heap.Count{}, heap.Count{}
}

// countSelected adds a site's memory in use to its account.
func countSelected(a *heap.Account, s *Site) {
	if s.Origin == heap.OriginBefore {
		a.BeforeBlocks = a.BeforeBlocks.Plus(s.Inuse)
		if a.Before != event.Unknown {
			a.Before += s.Inuse.Bytes
		}
		return
	}
	a.Live = a.Live.Plus(s.Inuse)
}
