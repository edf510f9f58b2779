// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/words"
)

func addHits(h, o *figures.Hits) {
	h.Hits += o.Hits
	h.Emitted += o.Emitted
	merge(h.Quiet, o.Quiet)
	merge(h.Dropped, o.Dropped)
}

func merge(to, from map[string]uint64) {
	for k, v := range from {
		to[k] += v
	}
}

func totalHits(probes []figures.Hits) figures.Hits {
	t := figures.Hits{Quiet: map[string]uint64{}, Dropped: map[string]uint64{}}
	for i := range probes {
		addHits(&t, &probes[i])
	}
	return t
}

func total(reasons map[string]uint64) uint64 {
	var n uint64
	for _, v := range reasons {
		n += v
	}
	return n
}

// Lost is how many events were lost, of all probes and for all reasons; event.Unknown without probes.
func Lost(probes []figures.Hits) uint64 {
	if len(probes) == 0 {
		return event.Unknown
	}
	return total(totalHits(probes).Dropped)
}

// upToEnd takes from the events that were lost those that were when the recording was over.
func upToEnd(lost, after uint64) uint64 {
	if lost == event.Unknown {
		return lost
	}
	return lost - min(after, lost)
}

// Imbalances are the probes whose hits do not add up, and events that left the kernel without being received.
func imbalances(probes []figures.Hits, received uint64) []string {
	var out []string
	for i := range probes {
		if wrong := imbalance(&probes[i]); wrong != "" {
			out = append(out, words.Line(probes[i].Probe)+": "+wrong)
		}
	}
	if t := totalHits(probes); t.Emitted != received {
		out = append(out, fmt.Sprintf("%s emitted, %s received", Plural(t.Emitted, "event"), countText(received)))
	}
	return out
}

// reasonsText is "ring full 10, no scratch 2", largest first; empty without any.
func reasonsText(reasons map[string]uint64) string {
	keys := slices.Collect(maps.Keys(reasons))
	sorts.Func(keys, func(x, y string) int {
		return cmp.Or(cmp.Compare(reasons[y], reasons[x]), cmp.Compare(x, y))
	})
	var out []string
	for _, k := range keys {
		if reasons[k] > 0 {
			out = append(out, fmt.Sprintf("%s %s", words.Line(k), countText(reasons[k])))
		}
	}
	return strings.Join(out, ", ")
}

// equation is "1,200 probe hits = 600 emitted + 599 without an event + 1 dropped".
func equation(h *figures.Hits) string {
	return fmt.Sprintf("%s probe hits = %s emitted + %s without an event + %s dropped",
		countText(h.Hits), countText(h.Emitted), countText(total(h.Quiet)), countText(total(h.Dropped)))
}

// imbalance says by how much the equation does not hold; empty when it does.
func imbalance(h *figures.Hits) string {
	sum := h.Emitted + total(h.Quiet) + total(h.Dropped)
	switch {
	case h.Hits > sum:
		return Plural(h.Hits-sum, "hit") + " not accounted for"
	case h.Hits < sum:
		return Plural(sum-h.Hits, "outcome") + " without a hit"
	}
	return ""
}
