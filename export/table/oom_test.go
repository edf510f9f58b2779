// SPDX-License-Identifier: Apache-2.0

package table

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/event"
)

const (
	oomMiB = 1 << 20
	oomGiB = 1 << 30
)

// fullCase is a request for 1 GiB on a device of 24 GiB that is full.
func fullCase() oom.Case {
	return oom.Case{
		PID: 7, Reported: true, Site: "train.py:9 main", Requested: oomGiB, Asked: oomGiB, Tries: 2, Decision: oom.Full, Caught: oom.Yes,
		Torch: balance.Torch{Allocated: 22 * oomGiB, Reserved: 23 * oomGiB}, Total: 24 * oomGiB, Free: 512 * oomMiB, Limit: event.Unknown,
		Healthy: 2 * oomGiB, Before60: event.Unknown, Largest: oomMiB, Pieces: 3 * oomGiB,
	}
}

// TestOOMAgain: failures of one line that follow each other are one entry, whatever is between others.
func TestOOMAgain(t *testing.T) {
	r := &oom.Report{}
	for i, site := range []string{"a.py:1 f", "a.py:1 f", "a.py:1 f", "b.py:2 g", "a.py:1 f"} {
		c := fullCase()
		c.Number, c.Site, c.Time = i+1, site, uint64(i+1)*1e9
		r.Cases = append(r.Cases, c)
	}
	r.Cases[4].Caught = oom.No
	var out strings.Builder
	require.NoError(t, OOM(&out, &OOMInput{Report: r, Why: func(*oom.Case) string { return "full" }}))
	require.Equal(t, 3, strings.Count(out.String(), "OUT OF MEMORY"), out.String())
	require.Equal(t, 1, strings.Count(strings.Join(strings.Fields(out.String()), " "),
		"again 2 failures of the same line and for the same reason, the last at +3.000"), out.String())
	require.Equal(t, 2, strings.Count(out.String(), "were not read in time"))
	require.Equal(t, 1, strings.Count(out.String(), "the program ended before they were read"))
}
