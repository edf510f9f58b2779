// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
)

func TestOfDifference(t *testing.T) {
	row := func(line string, bytes int64) view.Row { return view.Row{Name: line, Func: "main", Bytes: bytes} }
	for want, tt := range map[string]struct{ before, after []view.Row }{
		"as much is in use after as before, 0 B": {},
		"1.0 MiB more in use: 1.0 MiB before, 2.0 MiB after; the largest change is +1.0 MiB of a.py:1 main": {
			[]view.Row{row("a.py:1", 1<<20)}, []view.Row{row("a.py:1", 2<<20)},
		},
		"1.0 MiB less in use: 2.0 MiB before, 1.0 MiB after; the largest change is -1.5 MiB of a.py:1 main": {
			[]view.Row{row("a.py:1", 2<<20)}, []view.Row{row("a.py:1", 1<<19), row("b.py:1", 1<<19)},
		},
		"nearly as much is in use after as before: 1.0 MiB before, 1.0 MiB after, +512 B; the largest change is +512 B of b.py:1 main": {
			[]view.Row{row("a.py:1", 1<<20)}, []view.Row{row("a.py:1", 1<<20), row("b.py:1", 512)},
		},
	} {
		require.Equal(t, want, OfDifference(view.Diff(tt.before, tt.after, view.ByLine)))
	}
}
