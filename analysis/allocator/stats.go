// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
)

// Stats are the allocator's statistics as figures.
func Stats(all []inspect.MemoryStats) []figures.MemoryStats {
	var out []figures.MemoryStats
	for i := range all {
		m := &all[i]
		s := figures.UnknownStats(m.Device)
		for k := range m.Stats {
			s.Stats[k] = figures.PoolCounter{All: counter(m.Stats[k].All), Large: counter(m.Stats[k].Large), Small: counter(m.Stats[k].Small)}
		}
		s.Retries, s.OOMs = known(m.Retries), known(m.OOMs)
		s.OversizeAllocations, s.OversizeSegments = counter(m.OversizeAllocations), counter(m.OversizeSegments)
		out = append(out, *s)
	}
	return out
}

func counter(c inspect.Counter) figures.Counter {
	return figures.Counter{Current: known(c.Current), Peak: known(c.Peak), Allocated: known(c.Allocated), Freed: known(c.Freed)}
}

func known(n uint64) figures.Bytes {
	if n == inspect.Unknown {
		return figures.Unknown
	}
	return figures.Bytes(n)
}
