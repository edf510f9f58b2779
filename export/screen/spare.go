// SPDX-License-Identifier: Apache-2.0

package screen

import "github.com/gputrace/gputrace/export/table"

// spare prints what is reserved without use, what waits for another stream, and what was refused first, where that is much.
func (p *printer) spare() {
	if c := p.a.Cached; c != nil {
		p.text("CACHED   ", yellow, table.CachedText(c))
	}
	if w := p.a.Waiting; w != nil {
		p.text("WAITING  ", yellow, table.WaitingText(w, p.in.Begin()))
	}
	if r := p.a.Retried; r != nil {
		p.text("RETRIED  ", yellow, table.RetriedText(r))
	}
}
