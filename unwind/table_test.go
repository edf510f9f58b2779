// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// comparison walks two step functions, ours and readelf's, over every address at which either changes.
type comparison struct {
	t      *testing.T
	table  *Table
	next   int // our row behind the last one that holds
	points int
	forms  map[string]int // of them, those that no rule expresses, by how the CFA is computed
}

func compare(t *testing.T, table *Table, frames []wantFrame) comparison {
	t.Helper()
	c := comparison{t: t, table: table, forms: map[string]int{}}
	for fi := range frames {
		fr := &frames[fi]
		c.gap(fr.start)
		for i := range fr.rows {
			end := fr.end
			if i+1 < len(fr.rows) {
				end = min(end, fr.rows[i+1].pc)
			}
			c.row(&fr.rows[i], end, fr.expressions)
		}
	}
	c.gap(1 << 32)
	return c
}

// gap checks that we say nothing from the last function up to the next.
func (c *comparison) gap(to uint64) {
	for ; c.next < len(c.table.Rows) && c.pc() < to; c.next++ {
		if rule := rowRule(c.table, c.next); rule != Rule(RuleNone) {
			c.t.Errorf("%#x: got %v between functions", c.pc(), rule)
		}
	}
}

// row compares at a row of readelf's and at each of ours up to its end.
func (c *comparison) row(w *wantRow, end uint64, e *frameExpressions) {
	for pc := w.pc; pc < end; pc = c.pc() {
		for c.pc() <= pc {
			c.next++
		}
		got := Rule(RuleNone)
		if c.next > 0 {
			got = rowRule(c.table, c.next-1)
		}
		if c.points++; got.Kind() == RuleUnsupported {
			c.forms[fmt.Sprintf("cfa %s, rbp %s, ra %s", form(w.cfa), form(w.fp), form(w.ra))]++
		}
		if err := w.check(got, e); err != nil {
			c.t.Fatalf("%#x: %v", pc, err)
		}
	}
}

// form is a column without its offset.
func form(column string) string {
	if i := strings.IndexAny(column, "+-"); i > 0 {
		return column[:i]
	}
	return column
}

func (c *comparison) pc() uint64 {
	if c.next == len(c.table.Rows) {
		return 1 << 32
	}
	return uint64(uint32(c.table.Rows[c.next]))
}

func rowRule(t *Table, i int) Rule { return Rule(t.Rules[t.Rows[i]>>32]) }

// checkShape tests what Table promises of itself.
func checkShape(t testing.TB, table *Table) {
	t.Helper()
	if len(table.Rules) == 0 || table.Rules[0] != 0 || len(table.Rules) > MaxRules {
		t.Fatalf("%d rules", len(table.Rules))
	}
	seen := map[uint64]bool{}
	for _, r := range table.Rules {
		if seen[r] {
			t.Fatalf("rule %v twice", Rule(r))
		}
		seen[r] = true
	}
	for i, row := range table.Rows {
		if row>>32 >= uint64(len(table.Rules)) {
			t.Fatalf("row %d: rule %d of %d", i, row>>32, len(table.Rules))
		}
		if i > 0 && (uint32(row) <= uint32(table.Rows[i-1]) || row>>32 == table.Rows[i-1]>>32) {
			t.Fatalf("row %d: %#x behind %#x", i, row, table.Rows[i-1])
		}
	}
}

func TestUnwindTableEqualsReadelf(t *testing.T) {
	for _, path := range realLibraries(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			table := tableOf(t, open(t, path))
			checkShape(t, table)
			frames := readelfFrames(t, path)
			c := compare(t, table, frames)
			kinds := map[RuleKind]int{}
			for i := range table.Rows {
				kinds[rowRule(table, i).Kind()]++
			}
			t.Logf("%d frames, %d rows, %d rules, %d points compared, rows by kind %v, those without a rule by their form %v",
				len(frames), len(table.Rows), len(table.Rules), c.points, kinds, c.forms)
			if len(frames) < 100 || c.points < len(frames) {
				t.Errorf("only %d points in %d frames", c.points, len(frames))
			}
			for form, n := range c.forms {
				if strings.HasPrefix(form, "cfa exp") {
					t.Errorf("%d rows have an expression for the CFA that is not known", n)
				}
			}
		})
	}
}
