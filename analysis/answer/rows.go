// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

const (
	// maxRows is how many rows there are, and leastShare the part of all that the last must have.
	maxRows    = 5
	leastShare = 0.05
	// maxGrowing is how many rows of what grows are shown.
	maxGrowing = 3
)

// grouping puts what is in use into rows: what grows by its finding, what has a variable that holds it by that, the other by what it is
// for and by line.
type grouping struct {
	in      *Input
	entries []view.Row
	index   map[string]int
	groups  []group
	total   int64
	parts   []Row            // all of them, once rows were made
	garbage map[string]int64 // bytes, by holder

	claimed  map[claimKey]*leaks.Finding
	inferred bool         // of some of the garbage only the line is known
	guessed  map[int]bool // entries that are garbage by their line
}

// group is the entries of a row.
type group struct {
	Row
	members []view.Row
	growing map[*leaks.Finding]bool
}

func newGrouping(in *Input) *grouping {
	g := &grouping{in: in, entries: in.View.Rows(), index: map[string]int{}, garbage: map[string]int64{}, guessed: map[int]bool{}}
	g.entries = g.split(g.entries)
	g.claim(g.entries)
	for i := range g.entries {
		g.add(&g.entries[i], g.guessed[i])
	}
	return g
}

// site is how findings and readings name the line of an entry.
func site(e *view.Row) string {
	if e.Func == "" {
		return e.Name
	}
	return e.Name + " " + e.Func
}

// add adds an entry to its row. guessed: it has its holder by its line.
func (g *grouping) add(e *view.Row, guessed bool) {
	g.total += e.Bytes
	key, row := g.rowOf(e, guessed)
	at, ok := g.index[key]
	if !ok {
		at = len(g.groups)
		g.index[key] = at
		g.groups = append(g.groups, group{Row: row, growing: map[*leaks.Finding]bool{}})
		g.groups[at].Inferred = 0 // it is added below
	}
	m := &g.groups[at]
	if f := row.Finding; f != nil {
		m.growing[f] = true
		if f.Bytes > m.Finding.Bytes {
			m.Finding = f
		}
	}
	m.Bytes, m.Blocks, m.Inferred = m.Bytes+e.Bytes, m.Blocks+e.Blocks, m.Inferred+row.Inferred
	if m.Category != row.Category {
		m.Category = phases.NoCategory
	}
	m.members = append(m.members, *e)
}

// known are the categories that say more than a name of a variable.
var known = map[phases.Category]bool{phases.Parameters: true, phases.Gradients: true, phases.OptimizerState: true}

// rowOf is the row that an entry belongs to: its key, and what is known of it.
func (g *grouping) rowOf(e *view.Row, guessed bool) (string, Row) {
	row := Row{Category: phases.Category(cmp.Or(e.Category, string(phases.NoCategory)))}
	row.Holder = knownHolder(e.Holder)
	if guessed {
		row.Inferred = uint64(max(0, e.Bytes))
	}
	if f := cmp.Or(g.finding(e, row.Holder), g.claimed[claimOf(e)]); f != nil {
		if row.Holder == "" {
			row.Inferred = uint64(max(0, e.Bytes))
		}
		row.Holder, row.Finding = f.Holder, f
		return "grows " + cmp.Or(varpath.Readable(f.Holder), f.Name()), row
	}
	if read := g.in.Read[site(e)]; row.Holder == "" && read != "" && (g.in.When != AtPeak || advice.IsGarbage(read)) {
		row.Holder, row.Inferred = read, uint64(max(0, e.Bytes))
	}
	switch {
	case advice.IsGarbage(row.Holder):
		row.Category = phases.NoCategory // it is for nothing any more
		g.garbage[row.Holder] += e.Bytes
		g.inferred = g.inferred || row.Inferred > 0
		return "held " + row.Holder, row
	case known[row.Category]:
		row.Holder, row.Named = "", true
		return "for " + string(row.Category), row
	case row.Holder != "":
		return "held " + varpath.Readable(row.Holder), row
	}
	return "line " + string(row.Category) + " " + site(e) + e.File, row
}

// knownHolder is the holder of an entry; empty: it is not known.
func knownHolder(name string) string {
	if name == view.NoHolder || name == view.HolderFreed {
		return ""
	}
	return name
}

// finding is what says that the memory of an entry grows; nil: nothing does. What another variable holds is not part of it.
func (g *grouping) finding(e *view.Row, holder string) *leaks.Finding {
	if g.in.Leaks == nil || e.Layer == event.LayerHost.String() {
		return nil
	}
	var within *leaks.Finding // of any line, or of none: it is older than the recording
	for i := range g.in.Leaks.Findings {
		f := &g.in.Leaks.Findings[i]
		if holder != "" && f.Holder != "" && !sameHolder(holder, f.Holder) {
			continue
		}
		if slices.Contains(f.Stacks, e.StackID) {
			return f
		}
		if f.Layer == event.LayerTorch && varpath.Within(holder, f.Holder) && (within == nil || varpath.Within(f.Holder, within.Holder) && !varpath.Within(within.Holder, f.Holder)) {
			within = f
		}
	}
	return within
}

// claimKey is the memory of a stack that one thing holds.
type claimKey struct {
	stack  event.StackID
	holder string
}

func claimOf(e *view.Row) claimKey { return claimKey{e.StackID, e.Holder} }

// claimedShare is the part of what a finding has grown by that its rows must show.
const claimedShare = 0.95

// claim finds the memory of lines that grow which other things hold than most of it: as much of it, the largest first, as the lines have grown by
// belongs to what grows, and is not steady.
func (g *grouping) claim(entries []view.Row) {
	g.claimed = map[claimKey]*leaks.Finding{}
	if g.in.Leaks == nil {
		return
	}
	for i := range g.in.Leaks.Findings {
		f := &g.in.Leaks.Findings[i]
		var shown int64
		var others []*view.Row
		for k := range entries {
			e := &entries[k]
			if e.StackID == 0 || !slices.Contains(f.Stacks, e.StackID) {
				continue
			}
			if g.finding(e, knownHolder(e.Holder)) != nil {
				shown += e.Bytes
			} else {
				others = append(others, e)
			}
		}
		sorts.Func(others, func(x, y *view.Row) int {
			return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Holder, y.Holder))
		})
		for _, e := range others {
			if float64(shown) >= claimedShare*float64(f.Grown) {
				break
			}
			g.claimed[claimOf(e)] = f
			shown += e.Bytes
		}
	}
}

// sameHolder reports whether two readings name the same thing: "losses[0..24]" grows to "losses[0..99]".
func sameHolder(x, y string) bool {
	return varpath.Root(x) == varpath.Root(y) || varpath.Within(x, y) || varpath.Within(y, x)
}

// rows are the rows that are shown, the sums of all others, and the sum of both.
func (g *grouping) rows() (rows []Row, rest []Sum, total int64) {
	sorts.Func(g.groups, func(x, y group) int {
		return cmp.Or(compareGrowth(x.Finding, y.Finding), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Holder, y.Holder),
			cmp.Compare(x.Category, y.Category), cmp.Compare(site(&x.members[0]), site(&y.members[0])))
	})
	growing := 0
	sums := map[string]int64{}
	for i := range g.groups {
		m := &g.groups[i]
		if m.Finding != nil {
			growing++
		}
		m.purpose = g.purpose(m)
		if isShown(&m.Row, len(rows), growing, g.total) {
			rows = append(rows, g.finish(m))
			g.parts = append(g.parts, rows[len(rows)-1])
		} else {
			sums[m.purpose] += m.Bytes
			m.Lines = m.members[:1]
			g.parts = append(g.parts, m.Row)
		}
	}
	return rows, sumsOf(sums), g.total
}

// sumsOf returns sums, the largest first.
func sumsOf(sums map[string]int64) []Sum {
	var out []Sum
	for name, n := range sums {
		out = append(out, Sum{name, n})
	}
	sorts.Func(out, func(x, y Sum) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	return out
}

// compareGrowth puts what grows first, the fastest before others.
func compareGrowth(x, y *leaks.Finding) int {
	switch {
	case x == nil && y == nil:
		return 0
	case x == nil:
		return 1
	case y == nil:
		return -1
	}
	return cmp.Compare(y.Bytes, x.Bytes)
}

// isShown reports whether a row is shown: what grows, and where nothing does, what is large. before is how many are shown already, and total
// the bytes of all.
func isShown(r *Row, before, growing int, total int64) bool {
	if r.Finding != nil {
		return before < maxGrowing
	}
	return growing == 0 && before < maxRows && float64(r.Bytes) >= leastShare*float64(total)
}

// purposeWidth is the most of a variable that holds memory from before the attach, characters.
const purposeWidth = 24

// purpose is what the sums of the rest call the memory of a row.
func (g *grouping) purpose(m *group) string {
	switch e := &m.members[0]; {
	case m.Finding != nil:
		return "growing too"
	case advice.IsGarbage(m.Holder):
		return "garbage"
	case m.Category != phases.NoCategory:
		return strings.ReplaceAll(string(m.Category), "_", " ")
	case e.Layer == event.LayerDevice.String():
		return "outside PyTorch"
	case e.Name == stacks.BeforeAttach && m.Holder != "":
		if float64(m.Bytes) < leastShare*float64(g.total) {
			return "other"
		}
		return varpath.Fit(m.Holder, purposeWidth)
	case e.Name == stacks.BeforeAttach && g.in.Leaks != nil && len(g.in.Leaks.Findings) > 0:
		return Unread
	case e.File == "" && strings.HasPrefix(e.Name, "["): // nothing is known but that: "[before attach]"
		return strings.Trim(e.Name, "[]")
	}
	return "other"
}

// innerShare is the part of all above which the frames below a line are shown too, and maxInner how many of a line that grows.
const (
	innerShare = 0.3
	maxInner   = 1
)

// finish adds what is known of a whole row.
func (g *grouping) finish(m *group) Row {
	r := m.Row
	if g.total > 0 {
		r.Share = float64(r.Bytes) / float64(g.total)
	}
	if len(m.growing) > 0 {
		for i := range g.in.Leaks.Findings {
			if f := &g.in.Leaks.Findings[i]; m.growing[f] {
				r.Rate += Rate(f, &g.in.Leaks.Steps)
			}
		}
	}
	r.Lines = view.GroupRows(m.members, view.ByLine)
	if m.Finding != nil { // the line says more than that it is older
		slices.SortStableFunc(r.Lines, func(x, y view.Row) int { return cmp.Compare(older(&x), older(&y)) })
	}
	for i := range r.Lines {
		switch l := &r.Lines[i]; {
		case m.Finding != nil:
			l.Inner = l.Inner[:min(len(l.Inner), maxInner)]
		case float64(l.Bytes) <= innerShare*float64(g.total):
			l.Inner = nil
		}
	}
	if r.Named {
		r.Holder = largestHolder(m.members)
	}
	return r
}

// MoreLines is how many lines a row has beside the first; what was allocated before the attach has no line.
func (r *Row) MoreLines() int {
	n := -1
	for i := range r.Lines {
		if r.Lines[i].Name != stacks.BeforeAttach {
			n++
		}
	}
	return max(n, 0)
}

// older is 1 of what was allocated before the attach, and has no line.
func older(e *view.Row) int {
	if e.Name == stacks.BeforeAttach {
		return 1
	}
	return 0
}

// largestHolder is what holds the most of entries; empty: that is not known.
func largestHolder(entries []view.Row) string {
	for _, h := range view.GroupRows(entries, view.ByHolder) {
		if name := knownHolder(h.Name); name != "" {
			return name
		}
	}
	return ""
}
