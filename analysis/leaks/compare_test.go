// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestCompare: which findings of two recordings are the same.
func TestCompare(t *testing.T) {
	at := func(file string, line int, function string) Finding {
		return Finding{Layer: event.LayerTorch, File: file, Line: line, Function: function}
	}
	host := at("/a/train.py", 3, "f")
	host.Layer = event.LayerHost
	pair := func(c Change) [2]int {
		lines := [2]int{}
		if c.Before != nil {
			lines[0] = c.Before.Line
		}
		if c.After != nil {
			lines[1] = c.After.Line
		}
		return lines
	}
	for name, tt := range map[string]struct {
		before, after []Finding
		want          [][2]int // lines; 0: none
	}{
		"none":                         {},
		"new":                          {nil, []Finding{at("/a/train.py", 3, "f")}, [][2]int{{0, 3}}},
		"not any more":                 {[]Finding{at("/a/train.py", 3, "f")}, nil, [][2]int{{3, 0}}},
		"in another folder":            {[]Finding{at("/a/train.py", 3, "f")}, []Finding{at("/b/train.py", 3, "f")}, [][2]int{{3, 3}}},
		"moved":                        {[]Finding{at("/a/train.py", 3, "f")}, []Finding{at("/a/train.py", 9, "f")}, [][2]int{{3, 9}}},
		"of another function":          {[]Finding{at("/a/train.py", 3, "f")}, []Finding{at("/a/train.py", 3, "g")}, [][2]int{{0, 3}, {3, 0}}},
		"of another layer":             {[]Finding{host}, []Finding{at("/a/train.py", 3, "f")}, [][2]int{{0, 3}, {3, 0}}},
		"two in a function, one stays": {[]Finding{at("/a/t.py", 3, "f"), at("/a/t.py", 4, "f")}, []Finding{at("/a/t.py", 4, "f"), at("/a/t.py", 8, "f")}, [][2]int{{4, 4}, {3, 8}}},
		"two moved: a guess":           {[]Finding{at("/a/t.py", 3, "f"), at("/a/t.py", 4, "f")}, []Finding{at("/a/t.py", 7, "f"), at("/a/t.py", 8, "f")}, [][2]int{{0, 7}, {0, 8}, {3, 0}, {4, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got [][2]int
			for _, c := range Compare(&Report{Findings: tt.before}, &Report{Findings: tt.after}).Changes {
				got = append(got, pair(c))
			}
			require.Equal(t, tt.want, got)
		})
	}
}
