// SPDX-License-Identifier: Apache-2.0

package top

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRuler: bands of as many steps each, with their numbers where there is room; nothing where no step was seen.
func TestRuler(t *testing.T) {
	require.Empty(t, ruler([]int{-1, -1, -1}))
	require.Empty(t, ruler([]int{-1, 5, 5}), "no step since")
	var counts []int
	for i := range 40 {
		counts = append(counts, 10*i)
	}
	require.Equal(t, "──────────┃100━━━━━━┃200──────┃300━━━━━━", ruler(counts))
	counts = append([]int{-1, -1}, counts[:20]...)
	require.Equal(t, "  ──────────┃100━━━━━━", ruler(counts))
}

func TestNiceSteps(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 5, 6: 10, 11: 20, 21: 50, 99: 100, 101: 200, 12345: 20000} {
		require.Equal(t, want, niceSteps(n), n)
	}
}

// TestAges: a row is as old as the first of the screens without a gap that have it; the rest of a table has no age.
func TestAges(t *testing.T) {
	var a ages
	screen := func(second int, names ...string) []Row {
		s := &Screen{Time: time.Unix(int64(second), 0), Tables: map[By][]Row{}}
		for _, n := range names {
			s.Tables[ByLine] = append(s.Tables[ByLine], Row{Name: n, Rest: n == "rest"})
		}
		a.add(s)
		return s.Tables[ByLine]
	}
	require.Zero(t, *screen(1, "a", "b")[0].Age)
	rows := screen(3, "b", "rest")
	require.InDelta(t, 2, *rows[0].Age, 0)
	require.Nil(t, rows[1].Age)
	rows = screen(4, "a", "b")
	require.Zero(t, *rows[0].Age, "it was not in use in between")
	require.InDelta(t, 3, *rows[1].Age, 0)
	require.Equal(t, "3 s", ageOf(&rows[1]))
	old := 7300.0
	require.Equal(t, "2 h", ageOf(&Row{Age: &old}))
	require.Equal(t, "-", ageOf(&Row{}))
}
