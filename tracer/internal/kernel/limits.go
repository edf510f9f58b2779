// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"fmt"

	"github.com/gputrace/gputrace/bpf"
)

// Sizes of bpf/limits.h that warnings mention; a test compares them.
const (
	maxContexts = 1024
	cachedWalks = 4096
)

// crowdedCache is the number of writes per slot of the walk cache from which gputrace warns that the cache is too
// small, if most stacks are not found in it.
const crowdedCache = 16

// Walks counts how the kernel side obtained the stacks of PyTorch's layer. Cached is approximate, because it is counted
// without a lock.
type Walks struct {
	Cached uint64 // found in the walk cache
	Made   uint64 // walked, including those of the driver's calls
	Stored uint64 // part of Made that was stored in the cache
	ByCopy uint64 // part of Made begun in place and repeated by copies, because a page had moved
}

// Walks reads the counters.
func (s *Probes) Walks(k *Side) (w Walks, err error) {
	c, err := k.Counters()
	if err != nil {
		return w, err
	}
	w = Walks{Made: c.WalksMade, Stored: c.WalksStored, ByCopy: c.WalksByCopy}
	for _, p := range s.All {
		r, err := k.Stats(p.Index)
		if err != nil {
			return w, err
		}
		w.Cached += r.Cached
	}
	return w, nil
}

// Limits returns an error for each limit that was reached.
func (s *Probes) Limits(k *Side) ([]error, error) {
	c, err := k.Counters()
	if err != nil {
		return nil, err
	}
	w, err := s.Walks(k)
	if err != nil {
		return nil, err
	}
	return limitsReached(&c, w), nil
}

// limitsReached returns an error for each limit that was reached, with its effect.
func limitsReached(c *bpf.TraceCpuCounters, w Walks) (out []error) {
	if c.NoSlot > 0 {
		out = append(out, fmt.Errorf("%d events have no stack: more threads were interrupted in a walk than there is memory for walks", c.NoSlot))
	}
	if c.ContextUnknown > 0 && c.ContextsMade > maxContexts {
		out = append(out, fmt.Errorf("%d times a thread chose a context whose device is not known: %d contexts were made, and %d are kept",
			c.ContextUnknown, c.ContextsMade, maxContexts))
	}
	if c.SiteUnknown > 0 {
		out = append(out, fmt.Errorf("of %d allocations the requested size, stream and pool are not known: PyTorch's allocator reported them "+
			"from a place that is not known", c.SiteUnknown))
	}
	if w.Stored > crowdedCache*cachedWalks && w.Cached < w.Made {
		out = append(out, fmt.Errorf("stacks cost more than they should: %d of %d were walked, there are more different ones than the %d that "+
			"are kept", w.Made, w.Made+w.Cached, cachedWalks))
	}
	return out
}
