// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/tracer/hook"
)

// group returns the group of a function; nil when it has none.
func (f *Function) group() *Group {
	if !f.decided {
		f.decided, f.decision = true, f.decide()
	}
	return f.decision
}

// decide looks up the name, then a pattern that is allowed to match the function.
func (f *Function) decide() *Group {
	var byPattern *Group
	for i := range groups {
		g := &groups[i]
		for name := range strings.FieldsSeq(f.API.Names(g)) {
			switch {
			case name == f.Base():
				return g
			case byPattern == nil && f.mayMatch(g, name):
				byPattern = g
			}
		}
	}
	return byPattern
}

// mayMatch reports whether a pattern of a group is allowed to match a function. Functions that may be about memory are
// listed by name, unless they copy.
func (f *Function) mayMatch(g *Group, pattern string) bool {
	if !g.Copies && (g.Status != Other || f.Memory) {
		return false
	}
	ok, _ := path.Match(pattern, f.Base())
	return ok
}

// rows returns the rows of package hook for a function.
func (f *Function) rows() []hook.Row {
	var out []hook.Row
	for _, r := range hook.Rows {
		if r.Library == f.API.Hooks && r.MatchesName(f.Name) {
			out = append(out, r)
		}
	}
	return out
}

// check compares the names with the table and with the hooks. It returns what to do about each difference.
func check(names Names) []string {
	var out []string
	for _, f := range names {
		g, hooked := f.group(), len(f.rows()) > 0
		switch {
		case g == nil && f.Memory:
			out = append(out, fmt.Sprintf("%s: %s (%s) looks like memory and is in no group: if it gives or takes memory, give it a row in "+
				"tracer/hook; name it in tracer/hook/coverage/table.go", f.API.Title, f.Name, strings.Join(f.Versions, " ")))
		case g == nil:
			out = append(out, fmt.Sprintf("%s: %s (%s) is in no group: name it in tracer/hook/coverage/table.go", f.API.Title, f.Name,
				strings.Join(f.Versions, " ")))
		case g.Status == Hooked && !hooked:
			out = append(out, fmt.Sprintf("%s: %s is to be hooked (tracer/hook/coverage/table.go), and has no row in tracer/hook", f.API.Title,
				f.Name))
		case g.Status != Hooked && hooked:
			out = append(out, fmt.Sprintf("%s: %s has a row in tracer/hook, and is not among the hooked ones of tracer/hook/coverage/table.go",
				f.API.Title, f.Name))
		}
	}
	return append(out, checkRows(names)...)
}

// checkRows finds hooks that no version has, so that attaching would search for nothing.
func checkRows(names Names) []string {
	var out []string
	for _, r := range hook.Rows {
		of := func(f *Function) bool { return f.API.Hooks == r.Library && r.MatchesName(f.Name) }
		isOurs := slices.ContainsFunc(apis, func(a *API) bool { return a.Hooks == r.Library })
		if isOurs && !slices.ContainsFunc(names, of) {
			out = append(out, fmt.Sprintf("%s: tracer/hook has a row for %s, which no header declares", r.Library.Name, r.Symbol))
		}
	}
	return out
}
