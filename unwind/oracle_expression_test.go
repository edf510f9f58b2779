// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// frameExpressions are the expressions of one frame description, as readelf prints them, each once. Mostly it has one.
type frameExpressions struct{ cfa, fp, ra []string }

var (
	cfaExpression      = regexp.MustCompile(`DW_CFA_def_cfa_expression \((.*)\)`)
	registerExpression = regexp.MustCompile(`DW_CFA_expression: r(\d+) \(\w+\) \((.*)\)`)
)

// readelfExpressions lists the expressions of .eh_frame by the offset of their record. The table of rows, which is the other
// thing that readelf prints, has only "exp" for them.
func readelfExpressions(t testing.TB, path string) map[string]*frameExpressions {
	t.Helper()
	out := map[string]*frameExpressions{}
	record, inside := "", false
	line := func(s string) {
		switch {
		case strings.HasPrefix(s, "Contents of"):
			inside = strings.Contains(s, " .eh_frame ")
		case !inside || s == "":
		case s[0] != ' ':
			record, _, _ = strings.Cut(s, " ")
		case strings.Contains(s, "expression"):
			if out[record] == nil {
				out[record] = &frameExpressions{}
			}
			out[record].add(s)
		}
	}
	lines(t, line, "readelf", "-W", "--debug-dump=no-follow-links", "--debug-dump=frames", path)
	return out
}

func (e *frameExpressions) add(line string) {
	put := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	if m := cfaExpression.FindStringSubmatch(line); m != nil {
		put(&e.cfa, m[1])
		return
	}
	m := registerExpression.FindStringSubmatch(line)
	switch {
	case m == nil:
	case m[1] == "6":
		put(&e.fp, m[2])
	case m[1] == "16":
		put(&e.ra, m[2])
	}
}

// rules are what rows with expressions may be, when every expression of the frame description is tried where readelf has
// "exp". A state that no rule can express gives RuleUnsupported.
func (w *wantRow) rules(e *frameExpressions) (out []Rule) {
	if e == nil {
		e = &frameExpressions{}
	}
	choices := func(column string, list []string) []string {
		if column == "exp" {
			return list
		}
		return []string{column}
	}
	for _, cfa := range choices(w.cfa, e.cfa) {
		for _, fp := range choices(w.fp, e.fp) {
			for _, ra := range choices(w.ra, e.ra) {
				out = append(out, ruleOfTexts(cfa, fp, ra))
			}
		}
	}
	return out
}

var (
	columnText = regexp.MustCompile(`^(rsp|rbp)([+-]\d+)$`)
	derefText  = regexp.MustCompile(`^DW_OP_breg[67] \((rsp|rbp)\): (-?\d+); DW_OP_deref$`)
	addText    = regexp.MustCompile(`^DW_OP_breg[67] \((rsp|rbp)\): (-?\d+)$`)
	savedText  = regexp.MustCompile(`^c([+-]\d+)$`)
	pltText    = regexp.MustCompile(`^DW_OP_breg7 \(rsp\): (-?\d+); DW_OP_breg16 \(rip\): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit(\d+); ` +
		`DW_OP_ge; DW_OP_lit(\d+); DW_OP_shl; DW_OP_plus$`)
)

// ruleOfTexts is the rule for the three things that readelf says of a place.
func ruleOfTexts(cfa, fp, ra string) Rule {
	if m := derefText.FindStringSubmatch(cfa); m != nil && m[1] == "rsp" && m[2] == "160" && ra == "DW_OP_breg7 (rsp): 168" {
		return Rule(RuleSignal)
	}
	if ra != "c-8" {
		return Rule(RuleUnsupported)
	}
	if m := pltText.FindStringSubmatch(cfa); m != nil && (fp == "u" || fp == "s") {
		return NewPLTRule(number(m[1]), uint8(number(m[2])), 1<<number(m[3]))
	}
	kinds, m := map[string]RuleKind{"rsp": RuleSP, "rbp": RuleFP}, columnText.FindStringSubmatch(cfa)
	if m == nil {
		kinds, m = map[string]RuleKind{"rsp": RuleDerefSP, "rbp": RuleDerefFP}, derefText.FindStringSubmatch(cfa)
	}
	if m == nil {
		return Rule(RuleUnsupported)
	}
	kind, off := kinds[m[1]], number(m[2])
	if fp == "u" || fp == "s" {
		return NewRule(kind, off, SavedFP{})
	}
	if saved := savedText.FindStringSubmatch(fp); saved != nil {
		return NewRule(kind, off, SavedFP{FPAtCFA, number(saved[1])})
	}
	saved := addText.FindStringSubmatch(fp)
	switch {
	case saved != nil && saved[1] == "rbp" && kind == RuleSP && off == 8:
		return NewRule(kind, off, SavedFP{}) // the frame has ended: its rule for rbp is stale
	case saved != nil && saved[1] == "rbp":
		return NewRule(kind, off, SavedFP{FPAtFP, number(saved[2])})
	case saved != nil && kind == RuleSP:
		return NewRule(kind, off, SavedFP{FPAtCFA, number(saved[2]) - off})
	}
	return Rule(RuleUnsupported)
}

// number reads what a regular expression has found to be one.
func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
