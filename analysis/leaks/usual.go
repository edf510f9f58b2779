// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// ended counts the phase in which a block is freed. e is nil if the event is not known.
func (d *detector) ended(b *heap.Block, e *event.Event) {
	if d.ends != nil && e != nil && e.Kind == event.KindFree && counts(b) {
		_, s := d.find(b)
		d.ends.Freed(s, e)
	}
}

// usualEnd sets the phase in which blocks of a finding's sites are usually freed, if it differs from the phase of their allocation.
func (d *detector) usualEnd(f *Finding, g []risen) {
	if d.ends == nil {
		return
	}
	var keys []siteKey
	for i := range g {
		if g[i].from != nil {
			keys = append(keys, g[i].site)
			continue
		}
		for k, s := range d.sites {
			if k.place == g[i].place && s.source.line == g[i].line {
				keys = append(keys, k)
			}
		}
	}
	var sites []*site
	for _, k := range keys {
		sites = append(sites, d.sites[k])
		p := d.classifier.Of(k.stack).Phase
		switch {
		case p == phases.Unknown:
		case f.Phase == "":
			f.Phase = p
		case f.Phase != p:
			f.Phase = phases.Ambiguous
		}
	}
	if usual := d.ends.Usual(sites); usual != phases.Unknown && usual != f.Phase {
		f.UsualEnd = usual
	}
}
