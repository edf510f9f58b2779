// SPDX-License-Identifier: Apache-2.0

package leaks

import "github.com/gputrace/gputrace/analysis/leaks/internal/floors"

// cleared is what the program has let go of before the loop that is judged: a storage that is filled in one loop, and cleared in another
// one that learns from it, grows in each of its rounds, of which a recording may have one.
type cleared struct {
	lines  map[line]bool // whose blocks stayed for steps, and went
	bytes  uint64        // by which the memory in use fell
	hidden bool          // a finding was left out because of it
}

// clearedBefore returns what was let go of in the loops before this one; nothing if it was not most of the memory in use.
func (d *detector) clearedBefore() cleared {
	c := cleared{lines: map[line]bool{}}
	if fall := d.level.fall; 2*fall >= d.level.top {
		c.bytes = uint64(fall)
	}
	for k, s := range d.lines {
		if s.gone != nil && s.gone.live.Blocks >= floors.MinRises {
			c.lines[k.line] = c.bytes > 0
		}
	}
	return c
}

// has reports whether a finding's line was cleared before, and what it has now is not more than the program let go of then.
func (c *cleared) has(f *Finding) bool {
	return c.lines[line{f.File, f.Line, f.Function, f.Backward}] && f.LiveBytes <= c.bytes
}
