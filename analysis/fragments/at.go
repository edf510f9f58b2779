// SPDX-License-Identifier: Apache-2.0

package fragments

import (
	"fmt"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/view"
)

// At is the map of every caching allocator of a trace at a moment, by process and device. The trace is replayed once.
func At(t *view.Trace, s view.Selection) ([]*Map, error) {
	layouts, err := allocator.Layouts(t, allocator.LayoutOptions{Selection: s, Entries: 1})
	if err != nil {
		return nil, fmt.Errorf("find the segments: %w", err)
	}
	var out []*Map
	for i := range layouts {
		if layouts[i].Device.Allocator().Simulated() { // of the others it is not known how they place blocks
			out = append(out, OfLayout(&layouts[i]))
		}
	}
	return out, nil
}
