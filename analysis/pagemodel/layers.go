// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Colors is how many rows have a colour of their own.
const Colors = 8

// The layers that have none, as Layer.Color.
const (
	ColorBefore = -1 - iota // from before the first event, and not known of what
	ColorOther              // all rows beyond Colors
	ColorRest               // what has no name, such as view.NoHolder
)

// Layer is a part of the memory that is drawn in one colour.
type Layer struct {
	Name  string
	Color int // from 0 to Colors-1, by rank, or one of ColorBefore and so on
}

// Layers is the memory by holder, category or line, as a curve is stacked of it: the rows that are largest or grow most, and the rest. What
// is steady comes first, to be drawn at the bottom.
type Layers struct {
	List  []Layer
	model *Model
	of    []int    // of each group: index in List; -1: it is not counted
	spare []layed  // totals
	rows  []rowSum // while the layers are chosen
}

// layed is a total of a part at each moment that belongs to a layer.
type layed struct {
	part, layer int
	name        string
	bytes       func(moment int) float64
}

// rowSum is what a row has: over time, at the beginning and at the end.
type rowSum struct {
	name              string
	mean, first, last float64
}

func (r *rowSum) score() float64 { return r.mean + max(0, r.last-r.first) }

// Layers chooses the layers: by holder where most of the highest peak has one that is known, else by category where
// one line has most of it, else by line.
func (b *Model) Layers() *Layers {
	l := &Layers{model: b, of: make([]int, len(b.Groups))}
	kind, name := b.firstRows()
	index := map[string]int{}
	row := func(name string) int {
		i, ok := index[name]
		if !ok {
			i = len(l.rows)
			index[name] = i
			l.rows = append(l.rows, rowSum{name: name})
		}
		return i
	}
	for g := range b.Groups {
		if l.of[g] = -1; b.Groups[g].Counted() {
			l.of[g] = row(name(&b.Groups[g]))
		}
	}
	l.addTotals(kind == view.NoHolder, kind == "")
	for i := range l.spare {
		l.spare[i].layer = row(l.spare[i].name)
	}
	l.weigh()
	l.choose()
	return l
}

// firstRows is how rows are named, and what the kind of rows calls those that are of no group: by holder, by category (empty), by line.
func (b *Model) firstRows() (kind string, name func(*Group) string) {
	at := b.highest()
	var all, held, most float64
	lines := map[int32]float64{}
	categories := map[string]bool{}
	for i := range b.Lifetimes {
		f := &b.Lifetimes[i]
		g := &b.Groups[f.Group]
		if !g.Counted() || int(f.Alloc) > at || int(f.Free) <= at {
			continue
		}
		all += float64(f.Bytes)
		if !nameless(g.Holder) {
			held += float64(f.Bytes)
		}
		if b.Frames[g.Own].Kind == TreeOwn {
			lines[g.Own] += float64(f.Bytes)
			most = max(most, lines[g.Own])
		}
		categories[string(g.Category)] = true
	}
	for i := range b.Parts {
		all += known(b.Parts[i].Before, at)
		for k := range b.Parts[i].BeforeFor {
			held += float64(b.Parts[i].BeforeFor[k].Bytes[at])
		}
	}
	switch {
	case held > all/2:
		return view.NoHolder, func(g *Group) string { return g.Holder }
	case most > all/2 && len(categories) > 2:
		return "", func(g *Group) string { return string(g.Category) }
	}
	return stacks.BeforeAttach, func(g *Group) string { return frameName(&b.Frames[g.Own]) }
}

// highest is the moment of the highest peak.
func (b *Model) highest() int {
	at, most := len(b.Moments)-1, uint64(0)
	for i := range b.Parts {
		if p := &b.Parts[i]; p.PeakMoment >= 0 && p.Peak > most {
			at, most = p.PeakMoment, p.Peak
		}
	}
	return at
}

func frameName(f *TreeFrame) string {
	if f.Kind != TreeOwn && f.Kind != TreeLibrary {
		return f.Name
	}
	if f.Line == 0 {
		return path.Base(f.File)
	}
	return fmt.Sprintf("%s:%d %s", path.Base(f.File), f.Line, f.Name)
}

// nameless says whether a name stands for what has none.
func nameless(name string) bool {
	switch name {
	case "", "unknown", stacks.BeforeAttach, stacks.LostEvents, stacks.NoStack, stacks.UnknownStack, view.NoHolder, view.HolderFreed:
		return true
	}
	return false
}

func known(list []uint64, at int) float64 {
	if list[at] == event.Unknown {
		return 0
	}
	return float64(list[at])
}

// addTotals enters what is known of the allocators' totals only.
func (l *Layers) addTotals(byHolder, byCategory bool) {
	for i := range l.model.Parts {
		p := &l.model.Parts[i]
		for k := range p.BeforeFor {
			f := &p.BeforeFor[k]
			name := stacks.BeforeAttach
			if byHolder {
				name = f.Holder
			} else if byCategory {
				name = string(f.Category)
			}
			l.spare = append(l.spare, layed{part: i, name: name, bytes: func(at int) float64 { return float64(f.Bytes[at]) }})
		}
		l.spare = append(l.spare, layed{part: i, name: stacks.BeforeAttach, bytes: func(at int) float64 {
			rest := known(p.Before, at)
			for k := range p.BeforeFor {
				rest -= float64(p.BeforeFor[k].Bytes[at])
			}
			return rest
		}}, layed{part: i, name: stacks.LostEvents, bytes: func(at int) float64 { return float64(p.Lost[at]) }})
	}
}

// weigh adds up what each row has.
func (l *Layers) weigh() {
	b := l.model
	end := len(b.Moments) - 1
	time := func(i int) float64 { return float64(b.Moments[min(i, end)].Time) }
	whole := max(1, time(end)-time(0))
	for i := range b.Lifetimes {
		f := &b.Lifetimes[i]
		if l.of[f.Group] < 0 || f.Alloc == f.Free {
			continue
		}
		r, bytes := &l.rows[l.of[f.Group]], float64(f.Bytes)
		r.mean += bytes * (time(int(f.Free)) - time(int(f.Alloc))) / whole
		if f.Alloc == 0 {
			r.first += bytes
		}
		if int(f.Free) > end {
			r.last += bytes
		}
	}
	for _, s := range l.spare {
		r := &l.rows[s.layer]
		for i := range b.Moments {
			r.mean += s.bytes(i) / float64(len(b.Moments))
		}
		r.first, r.last = r.first+s.bytes(0), r.last+s.bytes(end)
	}
}

// choose makes layers of the rows, and orders them.
func (l *Layers) choose() {
	rank := make([]int, 0, len(l.rows))
	for i := range l.rows {
		if !nameless(l.rows[i].name) && l.rows[i].score() > 0 {
			rank = append(rank, i)
		}
	}
	sorts.Func(rank, func(x, y int) int {
		return cmp.Or(cmp.Compare(l.rows[y].score(), l.rows[x].score()), cmp.Compare(l.rows[x].name, l.rows[y].name))
	})
	to, at, without := make([]int, len(l.rows)), map[int]int{}, l.without()
	for i := range l.rows {
		r := &l.rows[i]
		layer := Layer{"smaller rows", ColorOther}
		switch n := slices.Index(rank, i); {
		case r.name == stacks.BeforeAttach:
			layer = Layer{r.name, ColorBefore}
		case nameless(r.name):
			layer = Layer{without, ColorRest}
		case n >= 0 && n < Colors:
			layer = Layer{r.name, n}
		}
		k, ok := at[layer.Color]
		if !ok {
			k = len(l.List)
			at[layer.Color] = k
			l.List = append(l.List, layer)
		}
		to[i] = k
	}
	l.renumber(to)
	l.order()
}

// without is what the layer of all that has no name is called.
func (l *Layers) without() string {
	name := ""
	for i := range l.rows {
		r := &l.rows[i]
		switch {
		case !nameless(r.name) || r.name == stacks.BeforeAttach || r.score() <= 0:
		case name != "":
			return "not known"
		default:
			name = r.name
		}
	}
	return name
}

func (l *Layers) renumber(to []int) {
	for g, i := range l.of {
		if i >= 0 {
			l.of[g] = to[i]
		}
	}
	for i := range l.spare {
		l.spare[i].layer = to[l.spare[i].layer]
	}
}

// order puts what is steady first, and drops what is empty.
func (l *Layers) order() {
	rough := make([]float64, len(l.List))
	courses := l.Courses(-1)
	for i, c := range courses {
		low, high := slices.Min(c), slices.Max(c)
		switch color := l.List[i].Color; {
		case color == ColorBefore:
			rough[i] = -1
		case color == ColorOther:
			rough[i] = 3
		case color == ColorRest:
			rough[i] = 4
		case high > 0:
			rough[i] = (high - low) / high
		}
		if high <= 0 {
			rough[i] = math.Inf(1)
		}
	}
	order := make([]int, len(l.List))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return cmp.Or(cmp.Compare(rough[x], rough[y]), cmp.Compare(l.List[x].Color, l.List[y].Color))
	})
	to, list := make([]int, len(order)), []Layer(nil)
	for n, i := range order {
		to[i] = n
		list = append(list, l.List[i])
	}
	l.List = list
	l.renumber(to)
	for len(l.List) > 0 && math.IsInf(rough[order[len(l.List)-1]], 1) {
		l.List = l.List[:len(l.List)-1] // nothing is drawn of it
	}
}

// Courses is what each layer has at each moment, bytes: of one part, or of all where it is negative.
func (l *Layers) Courses(part int) [][]float64 {
	n := len(l.model.Moments)
	out := make([][]float64, len(l.List)+1) // the last one is for what was dropped
	for i := range out {
		out[i] = make([]float64, n+1)
	}
	layer := func(i int) []float64 { return out[min(i, len(out)-1)] }
	for i := range l.model.Lifetimes {
		f := &l.model.Lifetimes[i]
		if l.of[f.Group] < 0 || f.Alloc == f.Free || part >= 0 && l.model.Groups[f.Group].Part != part {
			continue
		}
		c := layer(l.of[f.Group])
		c[f.Alloc] += float64(f.Bytes)
		c[f.Free] -= float64(f.Bytes)
	}
	for _, c := range out {
		for i := 1; i < n; i++ {
			c[i] += c[i-1]
		}
	}
	for _, s := range l.spare {
		if part < 0 || s.part == part {
			for i := range n {
				layer(s.layer)[i] += s.bytes(i)
			}
		}
	}
	for i := range out {
		out[i] = out[i][:n]
	}
	return out[:len(l.List)]
}
