// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRead: what was read of a line counts for all its calls, but only for those that were seen if the scan divided it by calls.
func TestRead(t *testing.T) {
	r := &Read{}
	r.Set(SiteCall{"a.py:1", ""}, ReadHolder{"kept", 10})
	r.Set(SiteCall{"train.py:9 main", ""}, ReadHolder{"optimizer.state", 30})
	r.Set(SiteCall{"train.py:9 main", "adamw.py:20 step"}, ReadHolder{"optimizer.state", 20})
	r.Set(SiteCall{"train.py:9 main", "loop.py:30 evaluate"}, ReadHolder{"", 10})
	for _, c := range []struct {
		site, call string
		want       ReadHolder
	}{
		{"a.py:1", "", ReadHolder{"kept", 10}},
		{"a.py:1", "lib.py:3 f", ReadHolder{"kept", 10}}, // of an older recording
		{"train.py:9 main", "", ReadHolder{"optimizer.state", 30}},
		{"train.py:9 main", "adamw.py:20 step", ReadHolder{"optimizer.state", 20}},
		{"train.py:9 main", "loop.py:30 evaluate", ReadHolder{"", 10}},
		{"train.py:9 main", "loop.py:31 evaluate", ReadHolder{}},
		{"b.py:1", "", ReadHolder{}},
	} {
		require.Equal(t, c.want, r.Get(r.Key(SiteCall{c.site, c.call})), "%s, %s", c.site, c.call)
		for _, none := range []*Read{nil, {}} {
			require.Zero(t, none.Get(none.Key(SiteCall{c.site, c.call})))
		}
	}
}
