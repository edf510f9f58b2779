// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/internal/size"
)

// Filter says which rows a table shows. nil: all.
type Filter struct {
	terms []clause // all must hold
	not   bool     // those that do not match
}

// clause is one condition of a query.
type clause struct {
	field string // "live", "blocks", "peak", "growth", "file", "name", "function", "holder", "category"; empty: any text
	op    byte   // '>', '<', '=', '~'
	value float64
	text  *regexp.Regexp
}

// numbers and texts are what a query can ask for.
var (
	numbers = []string{"live", "blocks", "peak", "growth"}
	texts   = []string{"file", "name", "function", "holder", "category", "source"}
)

// condition is a field, an operator and a value.
var condition = regexp.MustCompile(`^([a-z]+)\s*([<>=~])\s*(.+)$`)

// ParseFilter reads a query: conditions joined by "and", such as "live>1g and file~model.py", or a word that a row must have. A "!" in
// front shows the others. Sizes have a suffix k, m, g or t. The error says what is wrong with it.
func ParseFilter(query string) (*Filter, error) {
	query = strings.TrimSpace(query)
	f := &Filter{}
	if rest, not := strings.CutPrefix(query, "!"); not {
		f.not, query = true, strings.TrimSpace(rest)
	}
	if query == "" {
		return nil, nil
	}
	for _, part := range strings.Split(query, " and ") {
		t, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		f.terms = append(f.terms, t)
	}
	return f, nil
}

func parseTerm(s string) (clause, error) {
	m := condition.FindStringSubmatch(s)
	if m == nil {
		return textTerm("", '~', regexp.QuoteMeta(s))
	}
	field, op, value := m[1], m[2][0], m[3]
	switch {
	case slices.Contains(texts, field) && op == '=':
		return textTerm(field, op, "^"+regexp.QuoteMeta(value)+"$")
	case slices.Contains(texts, field) && op == '~':
		return textTerm(field, op, value)
	case slices.Contains(numbers, field) && op != '~':
		n, err := size.Parse(value)
		if err != nil {
			return clause{}, fmt.Errorf("%s: %w", s, err)
		}
		return clause{field: field, op: op, value: float64(n)}, nil
	}
	return clause{}, fmt.Errorf("%s: fields are %s with < > =, and %s with = ~", s, strings.Join(numbers, " "), strings.Join(texts, " "))
}

func textTerm(field string, op byte, pattern string) (clause, error) {
	re, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		return clause{}, fmt.Errorf("read the pattern: %w", err)
	}
	return clause{field: field, op: op, text: re}, nil
}

// Shows reports whether a row is to be shown.
func (f *Filter) Shows(r *Row) bool {
	if f == nil {
		return true
	}
	all := true
	for i := range f.terms {
		all = all && f.terms[i].holds(r)
	}
	return all != f.not
}

func (t *clause) holds(r *Row) bool {
	if t.text != nil {
		return t.text.MatchString(textOf(r, t.field))
	}
	n, known := numberOf(r, t.field)
	switch {
	case !known:
		return false
	case t.op == '>':
		return n > t.value
	case t.op == '<':
		return n < t.value
	}
	return n == t.value
}

func numberOf(r *Row, field string) (n float64, known bool) {
	switch field {
	case "live":
		return float64(r.Bytes), true
	case "blocks":
		return float64(r.Blocks), true
	case "peak":
		if r.Peak == nil {
			return 0, false
		}
		return float64(*r.Peak), true
	}
	if r.PerStep == nil {
		return 0, true // no growth is proved
	}
	return *r.PerStep, true
}

func textOf(r *Row, field string) string {
	switch field {
	case "file":
		return r.File
	case "name":
		return r.Name
	case "function":
		return r.Function
	case "holder":
		return r.Holder
	case "category":
		return r.Category
	case "source":
		return r.Source
	}
	return strings.Join([]string{r.Name, r.Function, r.File, r.Source, r.Holder, r.Category}, " ")
}
