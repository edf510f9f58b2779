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
	// maxRows is the maximum number of rows, and leastShare the minimum share of the total for a row.
	maxRows    = 5
	leastShare = 0.05
	// maxGrowing is the maximum number of rows of growth.
	maxGrowing = 3
)

// grouping groups the memory in use into rows: growing memory by finding, memory held by a variable by that variable,
// and the rest by purpose and line.
type grouping struct {
	in      *Input
	leaks   *leaks.Report // of the moment of the rows; nil: not judged
	entries []view.Row
	index   map[string]int
	groups  []group
	total   int64
	parts   []Row            // all rows, once they were made
	garbage map[string]int64 // bytes by holder

	sums     map[view.SiteCall]uint64 // bytes of the entries whose holders scans find
	claimed  map[claimKey]*leaks.Finding
	inferred bool               // some of the garbage is known only by its line
	guessed  map[int]bool       // entries whose holder follows from their line
	beyond   map[*view.Row]bool // entries of growing lines that are no part of the growth
}

// group is the entries of one row.
type group struct {
	Row
	members []view.Row
	growing map[*leaks.Finding]bool
}

func newGrouping(in *Input) *grouping {
	g := &grouping{
		in: in, leaks: in.Leaks, entries: in.View.Rows(), index: map[string]int{}, garbage: map[string]int64{}, guessed: map[int]bool{},
		beyond: map[*view.Row]bool{},
	}
	if in.When == AtFailure && in.Before != nil {
		g.leaks = in.Before
	}
	if in.When == AtFailure && g.leaks != nil && !g.matters(g.leaks.Findings) {
		quiet := *g.leaks
		quiet.Findings = nil
		g.leaks = &quiet
	}
	g.group(g.entries)
	return g
}

// matters reports whether findings have enough of the memory in use at a failure to have a row.
func (g *grouping) matters(all []leaks.Finding) bool {
	sum, _ := leaks.Total(all)
	used := int64(0)
	for i := range g.entries {
		used += g.entries[i].Bytes
	}
	return float64(sum.LiveBytes) >= leastShare*float64(used)
}

// group makes the rows of entries.
func (g *grouping) group(entries []view.Row) {
	g.entries = g.divide(g.apportion(g.split(entries)))
	g.readBefore()
	g.claim(g.entries)
	for i := range g.entries {
		g.add(&g.entries[i], g.guessed[i])
	}
}

// leftOf is the part of a site's bytes in the last scan that must still be in use for the scan to name what is: a program
// can hand on what it keeps, such as every fifth of a list.
const leftOf = 0.75

// tooMuch is how many times as much as was read a call of a library must have for it to be something else: many parts of a program run the
// same code of a library. Holders are read again before a device that is half full is full.
const tooMuch = 4

// readBefore adds up the entries whose holders scans find, as Input.Read divides them.
func (g *grouping) readBefore() {
	g.sums = map[view.SiteCall]uint64{}
	for i := range g.entries {
		if e := &g.entries[i]; isScanned(e) {
			g.sums[g.in.Read.Key(view.SiteCall{Site: site(e), Call: e.Call()})] += uint64(max(0, e.Bytes))
		}
	}
}

// isScanned reports whether scans find the holders of an entry's layer.
func isScanned(e *view.Row) bool {
	return e.Layer != event.LayerDevice.String() && e.Layer != event.LayerHost.String()
}

// readOf returns what held an entry when holders were last read; empty: not known.
func (g *grouping) readOf(e *view.Row) string {
	if !isScanned(e) {
		return ""
	}
	key := g.in.Read.Key(view.SiteCall{Site: site(e), Call: e.Call()})
	read := g.in.Read.Get(key)
	switch part := float64(g.sums[key]) / float64(read.Bytes); {
	case read.Holder == "" || part < leftOf || g.isOther(read.Holder, e):
		return ""
	case key.Call != "" && part > tooMuch:
		return ""
	case part > 1/leftOf: // there are more elements now
		return varpath.Loose(read.Holder)
	}
	return read.Holder
}

// isOther reports whether a variable holds gradients, parameters or an optimizer's state, and an entry is for something else: a line can
// allocate both.
func (g *grouping) isOther(holder string, e *view.Row) bool {
	c := phases.Category(g.in.Facts[holder].Category)
	if strings.HasSuffix(holder, ".grad") {
		c = phases.Gradients
	}
	return known[c] && e.Category != "" && e.Category != string(phases.NoCategory) && e.Category != string(c)
}

// site returns the name of an entry's line, as findings and scans use it.
func site(e *view.Row) string {
	if e.Func == "" {
		return e.Name
	}
	return e.Name + " " + e.Func
}

// add adds an entry to its row. guessed: its holder follows from its line.
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

// known are the categories that are more informative than the name of a variable.
var known = map[phases.Category]bool{phases.Parameters: true, phases.Gradients: true, phases.OptimizerState: true, phases.KVCache: true,
	phases.Graphs: true}

// rowOf returns the row of an entry: its key, and what is known of it.
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
		if traceback, ok := varpath.Raised(f.Holder); ok { // the variables of its frames are one row
			row.Holder = traceback
		}
		return "grows " + cmp.Or(varpath.Readable(row.Holder), f.Name()), row
	}
	if read := g.readOf(e); row.Holder == "" && read != "" && (g.in.When != AtPeak || advice.IsGarbage(read)) {
		row.Holder, row.Inferred = read, uint64(max(0, e.Bytes))
	}
	switch {
	case advice.IsGarbage(row.Holder):
		row.Category = phases.NoCategory // garbage has no purpose
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

// knownHolder returns the holder of an entry; empty: not known.
func knownHolder(name string) string {
	if name == view.NoHolder || name == view.HolderFreed {
		return ""
	}
	return name
}

// finding returns the finding by which the memory of an entry grows; nil: none. Memory held by another variable is not part of it.
func (g *grouping) finding(e *view.Row, holder string) *leaks.Finding {
	if g.leaks == nil || e.Layer == event.LayerHost.String() || g.beyond[e] {
		return nil
	}
	var within *leaks.Finding // of any line, or of none if it is older than the recording
	for i := range g.leaks.Findings {
		f := &g.leaks.Findings[i]
		if holder != "" && f.Holder != "" && !varpath.Same(holder, f.Holder) {
			continue
		}
		if slices.Contains(f.Stacks, e.StackID) {
			return f
		}
		if f.Layer == event.LayerAllocator && varpath.Within(holder, f.Holder) && (within == nil || varpath.Within(f.Holder, within.Holder) &&
			!varpath.Within(within.Holder, f.Holder)) {
			within = f
		}
	}
	return within
}

// claimKey identifies the memory of a stack with one holder.
type claimKey struct {
	stack  event.StackID
	holder string
}

func claimOf(e *view.Row) claimKey { return claimKey{e.StackID, e.Holder} }

// claimedShare is the share of a finding's growth that its rows must account for.
const claimedShare = 0.95

// claim finds memory of growing lines with another holder than most of it. It attributes such memory to the growth, the
// largest first, up to the amount by which the lines have grown.
func (g *grouping) claim(entries []view.Row) {
	g.claimed = map[claimKey]*leaks.Finding{}
	if g.leaks == nil {
		return
	}
	for i := range g.leaks.Findings {
		f := &g.leaks.Findings[i]
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
	g.claimOlder(entries)
}

// rows returns the rows that are shown, the sums of all others, and the total.
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

// compareGrowth orders growth first, the fastest before others.
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

// isShown reports whether a row is shown: growing rows are or, if nothing grows, large ones. before is the number of
// rows already shown, and total the bytes of all.
func isShown(r *Row, before, growing int, total int64) bool {
	if r.Finding != nil {
		return before < maxGrowing
	}
	return growing == 0 && before < maxRows && float64(r.Bytes) >= leastShare*float64(total)
}

// purposeWidth is the maximum width of the name of a variable that holds memory from before the attach, characters.
const purposeWidth = 24

// purpose returns the name for the memory of a row in the sums of the rest.
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
	case e.Name == stacks.BeforeAttach && g.leaks != nil && len(g.leaks.Findings) > 0:
		return Unread
	case e.File == "" && strings.HasPrefix(e.Name, "["): // nothing else is known: "[before attach]"
		return strings.Trim(e.Name, "[]")
	}
	return "other"
}

// innerShare is the share of the total above which the frames below a line are shown too, and maxInner their maximum
// number for a growing line.
const (
	innerShare = 0.3
	maxInner   = 1
)

// finish completes a row.
func (g *grouping) finish(m *group) Row {
	r := m.Row
	if g.total > 0 {
		r.Share = float64(r.Bytes) / float64(g.total)
	}
	head := ""
	if len(m.growing) > 0 {
		for i := range g.leaks.Findings {
			if f := &g.leaks.Findings[i]; m.growing[f] {
				r.Rate += Rate(f, &g.leaks.Steps)
				head = cmp.Or(head, f.Name())
			}
		}
	}
	r.Lines = view.GroupRows(m.members, view.ByLine)
	if m.Finding != nil { // the line says more than its age, and the headline's comes first
		slices.SortStableFunc(r.Lines, func(x, y view.Row) int { return cmp.Compare(lineRank(&x, head), lineRank(&y, head)) })
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

// MoreLines returns the number of lines of a row beside the first; memory from before the attach has no line.
func (r *Row) MoreLines() int {
	n := -1
	for i := range r.Lines {
		if r.Lines[i].Name != stacks.BeforeAttach {
			n++
		}
	}
	return max(n, 0)
}

// lineRank returns the order of a line in the row of findings, head being the line of the first of them: memory from before the attach,
// which has no line, is the last.
func lineRank(e *view.Row, head string) int {
	switch {
	case site(e) == head:
		return 0
	case e.Name == stacks.BeforeAttach:
		return 2
	}
	return 1
}

// largestHolder returns the holder of most of the entries; empty: not known.
func largestHolder(entries []view.Row) string {
	for _, h := range view.GroupRows(entries, view.ByHolder) {
		if name := knownHolder(h.Name); name != "" {
			return name
		}
	}
	return ""
}
