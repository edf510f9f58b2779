// SPDX-License-Identifier: Apache-2.0

package ranks_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
)

// TestSkewsOrder: the largest skew comes first, and a launcher, which has no rank, is compared with nobody where there are ranks.
func TestSkewsOrder(t *testing.T) {
	process := func(rank, world int, peak, a, b int64) ranks.Process {
		return ranks.Process{Rank: rank, World: world, Peak: peak, Categories: map[string]int64{"a": a, "b": b}}
	}
	r := ranks.New([]ranks.Process{process(-1, 0, 900, 0, 0), process(0, 2, 10, 30, 1), process(1, 2, 12, 20, 9)})
	require.Equal(t, []ranks.Skew{{"a", 0, 1, 10}, {"b", 1, 0, 8}, {ranks.Total, 1, 0, 2}}, r.Skews)
	alone := ranks.New([]ranks.Process{process(-1, 1, 5, 0, 0), process(0, 1, 3, 0, 0)})
	require.Equal(t, []ranks.Skew{{ranks.Total, 0, 0, 0}}, alone.Skews, "a world of one has a launcher, too")
	require.Empty(t, alone.Missing)
	require.Empty(t, alone.Categories)
	require.Empty(t, ranks.New(nil).Skews)
}

// TestGrowingOrder: what grows is in the order in which it began to; of what the time is not known comes last. A
// report without findings does not grow.
func TestGrowingOrder(t *testing.T) {
	at := time.Unix(1e9, 0)
	process := func(rank int, grew time.Time, findings int) ranks.Process {
		return ranks.Process{Rank: rank, Grew: grew, Leaks: &leaks.Report{Findings: make([]leaks.Finding, findings)}}
	}
	r := ranks.New([]ranks.Process{
		process(0, time.Time{}, 1), process(1, at.Add(time.Second), 1), process(2, at, 2), process(3, at, 0), process(4, time.Time{}, 1),
		{Rank: 5, Grew: at},
	})
	require.Equal(t, []int{2, 1, 0, 4}, r.Growing)
	lead, ok := r.Lead()
	require.True(t, ok)
	require.Equal(t, time.Second, lead)
	r = ranks.New([]ranks.Process{process(0, time.Time{}, 1), process(1, at, 1)})
	_, ok = r.Lead()
	require.False(t, ok, "one time is not known")
	lead, ok = ranks.New([]ranks.Process{process(1, at, 1)}).Lead()
	require.False(t, ok, "one alone leads nobody")
	require.Zero(t, lead)
}

// TestGuestsApart: guests of one device by two lines are two, and those of one line on two devices; of devices used
// as much the first is the own one.
func TestGuestsApart(t *testing.T) {
	use := func(device int, site string, peak int64) ranks.DeviceUse {
		return ranks.DeviceUse{Device: device, Site: site, Peak: peak}
	}
	r := ranks.New([]ranks.Process{
		{Rank: 0, Devices: []ranks.DeviceUse{use(0, "x", 50)}},
		{Rank: 1, Devices: []ranks.DeviceUse{use(1, "x", 50), use(0, "a", 5)}},
		{Rank: 2, Devices: []ranks.DeviceUse{use(2, "x", 50), use(0, "b", 6), use(1, "a", 7)}},
		{Rank: 3, Devices: []ranks.DeviceUse{use(3, "x", 8), use(0, "a", 8)}},
		{Rank: 4},
		{Rank: 5, Devices: []ranks.DeviceUse{use(9, "x", 0)}},
		{Rank: 6, Devices: []ranks.DeviceUse{use(6, "x", 1), use(9, "x", 0), use(7, "x", 0)}},
	})
	require.Equal(t, []ranks.Guests{
		{use(0, "a", 8), 0, []int{1, 3}}, {use(0, "b", 6), 0, []int{2}}, {use(1, "a", 7), 1, []int{2}}, {use(9, "x", 0), 5, []int{6}},
	}, r.Guests)
}

// TestRowsOfNames: a row keeps its name while all processes call it the same, and shares are of all rows.
func TestRowsOfNames(t *testing.T) {
	all := []ranks.Identity{{Rank: 0}, {Rank: 1}}
	rows := ranks.Rows([]ranks.Part{
		{Process: 0, Name: "kept[0..3]", Bytes: 10, Blocks: 1}, {Process: 1, Name: "kept[0..3]", Bytes: 20, Blocks: 2},
		{Process: 0, Name: "lost[0..3]", Bytes: 4}, {Process: 1, Name: "lost[7]", Bytes: 6}, {Process: 1, Name: "lost[7]", Bytes: 0},
	}, all)
	require.Equal(t, []string{"kept[0..3]", "lost[*]"}, []string{rows[0].Name, rows[1].Name})
	require.Equal(t, []uint64{30, 10}, []uint64{rows[0].Bytes, rows[1].Bytes})
	require.EqualValues(t, 3, rows[0].Blocks)
	require.InDelta(t, 0.75, rows[0].Share, 1e-12)
	require.InDelta(t, 0.25, rows[1].Share, 1e-12)
	require.Equal(t, []int{0, 1}, rows[1].Processes)
	require.Equal(t, []string{"all 2", "all 2"}, []string{rows[0].Which, rows[1].Which})

	nothing := ranks.Rows([]ranks.Part{{Name: "b"}, {Name: "a"}}, all)
	require.Equal(t, []string{"a", "b"}, []string{nothing[0].Name, nothing[1].Name})
	require.Zero(t, nothing[0].Share)
	one := ranks.Rows([]ranks.Part{{Name: "b", Bytes: 1}}, all)
	require.InDelta(t, 1, one[0].Share, 1e-12)
	require.Equal(t, "rank 0", one[0].Which)
}
