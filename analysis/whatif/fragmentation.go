// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Fragmentation is what is free in pieces in the caching allocator of one device at a moment, what keeps it so, and what would help.
type Fragmentation struct {
	*fragments.Report
	Unknown    uint64 // bytes in use that lie in no known segment or block: the figures are not all of the device
	Pins       []fragments.Pin
	Workspaces []fragments.Workspace
	Replays    *Report // of the whole recording; nil: not all blocks are known at any moment, or it is not to be trusted
}

// Shares that decide on words: memory is fragmented where one part in fragmentedShare of what is reserved is, or more, a setting
// helps where the peak is lower by one part in helpsShare, and a replay is trusted where, under the recorded settings, it differs from what
// PyTorch reserved after fewer than one event in trustedShare. That of fragmented memory is also that of docs/decisions/oom.md.
const (
	fragmentedShare = 20
	helpsShare      = 20
	trustedShare    = 20
)

// IsFragmented reports whether what is fragmented is much of what is reserved: the share, and a segment of the large pool at least.
func (f *Fragmentation) IsFragmented() bool {
	return f.Fragmented >= max(f.Reserved/fragmentedShare, largeBuffer)
}

// Help is a setting under which the recorded program would have needed less.
type Help struct {
	*Row
	Saves  uint64 // of the peak of what is reserved, bytes; 0 where GoesOn is all
	GoesOn bool   // under the recorded settings a request fails, and here none does
}

// IsTrusted reports whether the replay under the recorded settings is close enough to what PyTorch did that others can be compared with it.
func (r *Report) IsTrusted() bool {
	c := &r.Check
	return c.Compared > 0 && (c.Compared-c.Equal)*trustedShare < c.Compared
}

// Helps are the settings that help, the best first. They mean nothing where the replay is not trusted.
func (r *Report) Helps() []Help {
	recorded := &r.Rows[0]
	var out []Help
	for i := range r.Rows[1:] {
		h := Help{Row: &r.Rows[i+1]}
		switch failed := recorded.Failed != nil; {
		case h.Failed != nil:
			continue
		case failed:
			h.GoesOn = true
		case h.Peak <= recorded.Peak-recorded.Peak/helpsShare:
			h.Saves = recorded.Peak - h.Peak
		default:
			continue
		}
		out = append(out, h)
	}
	sorts.Func(out, func(x, y Help) int { return cmp.Or(cmp.Compare(x.Peak, y.Peak), cmp.Compare(x.Conf(), y.Conf())) })
	return out
}
