// SPDX-License-Identifier: Apache-2.0

package leakdiff

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
)

type all = []leaks.Finding

// TestCompare: which findings of two recordings are the same.
func TestCompare(t *testing.T) {
	at := func(file string, line int, function string) leaks.Finding {
		return leaks.Finding{Layer: event.LayerAllocator, File: file, Line: line, Function: function}
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
		before, after all
		want          [][2]int // lines; 0: none
	}{
		"none":                {},
		"new":                 {nil, all{at("/a/train.py", 3, "f")}, [][2]int{{0, 3}}},
		"not any more":        {all{at("/a/train.py", 3, "f")}, nil, [][2]int{{3, 0}}},
		"in another folder":   {all{at("/a/train.py", 3, "f")}, all{at("/b/train.py", 3, "f")}, [][2]int{{3, 3}}},
		"moved":               {all{at("/a/train.py", 3, "f")}, all{at("/a/train.py", 9, "f")}, [][2]int{{3, 9}}},
		"of another function": {all{at("/a/train.py", 3, "f")}, all{at("/a/train.py", 3, "g")}, [][2]int{{0, 3}, {3, 0}}},
		"of another layer":    {all{host}, all{at("/a/train.py", 3, "f")}, [][2]int{{0, 3}, {3, 0}}},
		"two in a function, one stays": {all{at("/a/t.py", 3, "f"), at("/a/t.py", 4, "f")}, all{at("/a/t.py", 4, "f"), at("/a/t.py", 8, "f")},
			[][2]int{{4, 4}, {3, 8}}},
		"two moved: a guess": {all{at("/a/t.py", 3, "f"), at("/a/t.py", 4, "f")}, all{at("/a/t.py", 7, "f"), at("/a/t.py", 8, "f")},
			[][2]int{{0, 7}, {0, 8}, {3, 0}, {4, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got [][2]int
			for _, c := range Compare(&leaks.Report{Findings: tt.before}, &leaks.Report{Findings: tt.after}).Changes {
				got = append(got, pair(c))
			}
			require.Equal(t, tt.want, got)
		})
	}
}
