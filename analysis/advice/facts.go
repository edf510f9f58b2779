// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/internal/varpath"
)

// FactsOf returns the facts about a holder, from the facts that scans found by name. A holder can be the container of
// several names, or appear in a later scan with other ranges and another line of its function. A fact on which such
// names disagree is left out.
func FactsOf(holder string, all map[string]Facts) Facts {
	if f, ok := all[holder]; ok || holder == "" {
		return f
	}
	key := varpath.Key(holder)
	var out Facts
	each := map[string]uint64{} // by part of an element: "replay[0..9].state" and "replay[0..9].action"
	first := true
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if varpath.Key(name) != key && !varpath.Within(name, holder) {
			continue
		}
		f := all[name]
		each[varpath.Key(name)] = max(each[varpath.Key(name)], f.Each)
		if first {
			out, first = f, false
			continue
		}
		out.Chain, out.Hooks = max(out.Chain, f.Chain), max(out.Hooks, f.Hooks)
		out.Threads = max(out.Threads, f.Threads)
		if f.Links > out.Links {
			out.Links, out.Link = f.Links, f.Link
		}
		out.Cache, out.Cycle = out.Cache && f.Cache, cmp.Or(out.Cycle, f.Cycle)
		out.Containers, out.Moved = max(out.Containers, f.Containers), out.Moved || f.Moved
		out.Written, out.State = out.Written || f.Written, out.State || f.State
		out.Slice, out.Weak, out.Full = out.Slice && f.Slice, out.Weak && f.Weak, out.Full && f.Full
		out.Queue = out.Queue && f.Queue
		if out.Length, out.Was = max(out.Length, f.Length), max(out.Was, f.Was); out.Most != f.Most {
			out.Length, out.Most, out.Was = 0, 0, 0
		}
		if out.Reset != f.Reset {
			out.Reset = ""
		}
		if out.Category != f.Category {
			out.Category = ""
		}
	}
	out.Each = 0
	for _, bytes := range each {
		out.Each += bytes
	}
	out.Cache = out.Cache && strings.Contains(holder, ".cache")
	return out
}
