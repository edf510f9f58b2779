// SPDX-License-Identifier: Apache-2.0

package fragments

import (
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/view"
	allocators "github.com/gputrace/gputrace/event/allocator"
)

// At is the map of every caching allocator of a trace at a moment, by process and device. The trace is replayed once.
func At(t *view.Trace, s view.Selection) ([]*Map, error) {
	layouts, err := allocator.Layouts(t, allocator.LayoutOptions{Selection: s, Entries: 1})
	if err != nil {
		return nil, fmt.Errorf("find the segments: %w", err)
	}
	var out []*Map // of the others it is not known how they place blocks
	for i := range layouts {
		l := &layouts[i]
		known := func(s allocator.LayoutSegment) bool { return !s.MadeUp }
		if l.Device.Allocator().Simulated() || l.Device.Allocator() == allocators.BFC && slices.ContainsFunc(l.Segments, known) {
			out = append(out, OfLayout(l))
		}
	}
	return out, nil
}
