// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func tableOf(t testing.TB, f *file) *Table {
	t.Helper()
	table, err := f.Frames().Table()
	if err != nil || table == nil {
		t.Fatalf("table %v, error %v", table, err)
	}
	return table
}

// wantRow is a row as readelf interprets it: from pc on the columns hold.
type wantRow struct {
	pc          uint64
	cfa, fp, ra string
}

// wantFrame is an FDE of readelf.
type wantFrame struct {
	start, end  uint64
	rows        []wantRow
	expressions *frameExpressions // nil: none
}

// readelfFrames parses readelf's interpretation of .eh_frame, sorted, without frames that cannot be in memory.
func readelfFrames(t testing.TB, path string) []wantFrame {
	t.Helper()
	p := frameParser{t: t, cies: map[string]wantRow{}, strings: map[string]string{}, expressions: readelfExpressions(t, path)}
	lines(t, p.line, "readelf", "-W", "--debug-dump=no-follow-links", "--debug-dump=frames-interp", path)
	p.flush()
	p.frames = slices.DeleteFunc(p.frames, func(f wantFrame) bool { return f.start == 0 || f.start >= f.end })
	slices.SortStableFunc(p.frames, func(a, b wantFrame) int { return int(int64(a.start) - int64(b.start)) })
	return p.frames
}

type frameParser struct {
	t       testing.TB
	frames  []wantFrame
	current *wantFrame
	cies    map[string]wantRow // initial row by offset
	cie     string             // the CIE being read, "" in an FDE
	initial wantRow
	columns []string
	strings map[string]string
	other   bool // the section is not .eh_frame

	expressions map[string]*frameExpressions
}

func (p *frameParser) line(s string) {
	f := strings.Fields(s)
	if strings.Contains(s, "(") { // "r10 (r10)" is one column
		f = slices.DeleteFunc(f, func(w string) bool { return w[0] == '(' })
	}
	switch {
	case strings.HasPrefix(s, "Contents of"):
		p.flush()
		p.other = !slices.Contains(f, ".eh_frame")
	case p.other:
	case len(f) > 3 && (f[3] == "CIE" || f[3] == "FDE"):
		p.flush()
		p.columns = nil
		p.head(f)
	case len(f) > 1 && f[0] == "LOC":
		p.columns = f
	case len(f) > 1 && p.columns != nil && len(f) == len(p.columns):
		p.row(f)
	}
}

func (p *frameParser) head(f []string) {
	if f[3] == "CIE" {
		p.cie = f[0]
		p.cies[p.cie] = wantRow{}
		return
	}
	p.cie = ""
	var lo, hi string
	for _, w := range f[4:] {
		if v, ok := strings.CutPrefix(w, "cie="); ok {
			p.initial = p.cies[v]
		}
		if v, ok := strings.CutPrefix(w, "pc="); ok {
			lo, hi, _ = strings.Cut(v, "..")
		}
	}
	p.current = &wantFrame{start: p.hex(lo), end: p.hex(hi), expressions: p.expressions[f[0]]}
}

func (p *frameParser) hex(s string) uint64 {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

func (p *frameParser) row(f []string) {
	r := wantRow{pc: p.hex(f[0]), fp: "u", ra: "u"}
	for i, c := range p.columns {
		switch c {
		case "CFA":
			r.cfa = p.intern(f[i])
		case "rbp":
			r.fp = p.intern(f[i])
		case "ra":
			r.ra = p.intern(f[i])
		}
	}
	if p.cie != "" {
		p.cies[p.cie] = r
	} else if p.current != nil {
		p.current.rows = append(p.current.rows, r)
	}
}

func (p *frameParser) intern(s string) string {
	if v, ok := p.strings[s]; ok {
		return v
	}
	p.strings[s] = s
	return s
}

// flush ends an FDE. readelf prints no rows for one without instructions: the CIE's holds.
func (p *frameParser) flush() {
	if p.current == nil {
		return
	}
	if len(p.current.rows) == 0 {
		r := p.initial
		r.pc = p.current.start
		p.current.rows = []wantRow{r}
	}
	p.frames = append(p.frames, *p.current)
	p.current = nil
}

// check compares a rule with readelf's columns, and with the frame's expressions where those have "exp".
func (w *wantRow) check(got Rule, e *frameExpressions) error {
	want := []Rule{Rule(RuleEnd)}
	if w.ra != "u" {
		want = w.rules(e)
	}
	if !slices.Contains(want, got) {
		return fmt.Errorf("got %v, want one of %v: cfa %s, rbp %s, ra %s, expressions %+v", got, want, w.cfa, w.fp, w.ra, e)
	}
	return nil
}
