// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/internal/varpath"
)

// FactsOf are the facts about a holder among those that readings found, by name. A holder can be the container of several of them, or be
// called by other ranges and another line of its function in a later reading. Of names that say different things it says neither.
func FactsOf(holder string, all map[string]Facts) Facts {
	if f, ok := all[holder]; ok || holder == "" {
		return f
	}
	key := varpath.Key(holder)
	var out Facts
	first := true
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if varpath.Key(name) != key && !varpath.Within(name, holder) {
			continue
		}
		f := all[name]
		if first {
			out, first = f, false
			continue
		}
		out.Chain, out.Hooks = max(out.Chain, f.Chain), max(out.Hooks, f.Hooks)
		out.Cache, out.Cycle = out.Cache && f.Cache, cmp.Or(out.Cycle, f.Cycle)
		if out.Reset != f.Reset {
			out.Reset = ""
		}
		if out.Category != f.Category {
			out.Category = ""
		}
	}
	out.Cache = out.Cache && strings.Contains(holder, ".cache")
	return out
}
