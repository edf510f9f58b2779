// SPDX-License-Identifier: Apache-2.0

// Package leakdiff pairs the findings of two recordings.
package leakdiff

import (
	"path"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Change is a finding of one of two recordings, or one that both have.
type Change struct {
	Before *leaks.Finding // nil: it is new
	After  *leaks.Finding // nil: it is no longer found
}

// Comparison compares the verdicts on two recordings.
type Comparison struct {
	Before, After leaks.Verdict
	// Changes has the findings of after, in their order, then those that only before has.
	Changes []Change
}

// identity is what equal findings of two recordings have in common. It has no folders, which differ between machines,
// and no lines, which differ between versions.
type identity struct {
	layer    event.Layer
	device   event.Device
	file     string
	function string
	line     int
	backward bool
	holder   string // the variable, as of one line there can be a finding for each; empty: any
}

func identityOf(f *leaks.Finding) identity {
	return identity{f.Layer, f.Device, path.Base(f.File), f.Function, f.Line, f.Backward, ""}
}

func ofVariable(f *leaks.Finding) identity {
	k := identityOf(f)
	k.holder = varpath.Root(f.Holder)
	return k
}

// Compare pairs findings of two recordings with the same line, function and variable, then with the same line and function. The rest is
// paired by function if each recording has one finding of it, as after an edit that moved lines.
func Compare(before, after *leaks.Report) *Comparison {
	out := &Comparison{Before: before.Verdict, After: after.Verdict}
	pairs, paired := make([]*leaks.Finding, len(after.Findings)), map[*leaks.Finding]bool{}
	for _, key := range []func(*leaks.Finding) identity{ofVariable, identityOf, ofFunction} {
		open := unpaired(before.Findings, key, func(_ int, f *leaks.Finding) bool { return !paired[f] })
		for k, f := range unpaired(after.Findings, key, func(i int, _ *leaks.Finding) bool { return pairs[i] == nil }) {
			if b, ok := open[k]; ok && b >= 0 && f >= 0 {
				pairs[f] = &before.Findings[b]
				paired[pairs[f]] = true
			}
		}
	}
	for i, b := range pairs {
		out.Changes = append(out.Changes, Change{Before: b, After: &after.Findings[i]})
	}
	for i := range before.Findings {
		if f := &before.Findings[i]; !paired[f] {
			out.Changes = append(out.Changes, Change{Before: f})
		}
	}
	return out
}

func ofFunction(f *leaks.Finding) identity {
	k := identityOf(f)
	k.line = 0
	return k
}

// unpaired returns the positions of findings by key; -1 for a key that several findings have.
func unpaired(all []leaks.Finding, key func(*leaks.Finding) identity, open func(int, *leaks.Finding) bool) map[identity]int {
	out := map[identity]int{}
	for i := range all {
		if !open(i, &all[i]) {
			continue
		}
		k := key(&all[i])
		if _, several := out[k]; several {
			i = -1
		}
		out[k] = i
	}
	return out
}
