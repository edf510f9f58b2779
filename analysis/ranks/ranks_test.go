// SPDX-License-Identifier: Apache-2.0

package ranks_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
)

// TestNew: ranks are in their order, the skew names the ranks that are farthest apart, and what is missing is listed.
func TestNew(t *testing.T) {
	growing := &leaks.Report{Findings: make([]leaks.Finding, 1)}
	at := time.Unix(1e9, 0)
	rank := func(n int, peak, activations int64) ranks.Process {
		return ranks.Process{Rank: n, World: 4, PID: 100 - n, Peak: peak, Categories: map[string]int64{"activation": activations,
			"parameter": 10, "none": 0}}
	}
	first, second := rank(2, 30, 20), rank(0, 20, 10)
	first.Leaks, first.Grew = growing, at
	second.Leaks, second.Grew = growing, at.Add(3*time.Second)
	launcher := ranks.Process{Rank: -1, PID: 1}
	r := ranks.New([]ranks.Process{first, launcher, rank(1, 25, 12), second})
	var order []int
	for _, p := range r.Processes {
		order = append(order, p.Rank)
	}
	require.Equal(t, []int{0, 1, 2, -1}, order)
	require.Equal(t, []string{"activation", "parameter"}, r.Categories)
	require.Equal(t, []ranks.Skew{
		{Category: ranks.Total, Most: 2, Least: 0, Bytes: 10}, {Category: "activation", Most: 2, Least: 0, Bytes: 10}, {Category: "parameter"},
	}, r.Skews)
	require.Equal(t, []int{3}, r.Missing)
	require.Equal(t, []int{2, 0}, r.Growing)
	lead, ok := r.Lead()
	require.True(t, ok)
	require.Equal(t, 3*time.Second, lead)
}

// TestUnknownWorld: without ranks nothing is missing, and all processes are compared.
func TestUnknownWorld(t *testing.T) {
	r := ranks.New([]ranks.Process{{Rank: -1, PID: 2, Peak: 5}, {Rank: -1, PID: 1, Peak: 7}})
	require.Nil(t, r.Missing)
	require.Equal(t, []ranks.Skew{{Category: ranks.Total, Least: 1, Bytes: 2}}, r.Skews)
	_, ok := r.Lead()
	require.False(t, ok)
}

// TestGuests: a process is a guest on a device of another one when it uses it beside its own; one with a single device is none.
func TestGuests(t *testing.T) {
	use := func(device int, peak int64) ranks.DeviceUse {
		return ranks.DeviceUse{Device: device, Site: "load.py:12 load", Peak: peak}
	}
	process := func(rank int, devices ...ranks.DeviceUse) ranks.Process {
		return ranks.Process{Rank: rank, World: 4, Devices: devices}
	}
	r := ranks.New([]ranks.Process{
		process(0, use(0, 100)), process(1, use(0, 2), use(1, 100)), process(2, use(0, 3), use(2, 100)), process(3, use(3, 50), use(7, 1)),
		{Rank: -1},
	})
	require.Equal(t, []ranks.Guests{{DeviceUse: use(0, 3), Processes: []int{1, 2}}}, r.Guests)
	r = ranks.New([]ranks.Process{process(0, use(0, 100)), process(1, use(0, 100)), process(2, use(0, 100))})
	require.Empty(t, r.Guests, "each has one device, which may be another one of the machine")
}

// TestLead: how much earlier the first began to grow is known only of two whose times are known.
func TestLead(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, c := range []struct {
		first, second time.Time
		ok            bool
	}{{at, at.Add(time.Second), true}, {time.Time{}, at, false}, {at, time.Time{}, false}, {time.Time{}, time.Time{}, false}} {
		table := &ranks.Table{Growing: []int{0, 1}, Processes: []ranks.Process{{Grew: c.first}, {Grew: c.second}}}
		lead, ok := table.Lead()
		require.Equal(t, c.ok, ok, c)
		if ok {
			require.Equal(t, time.Second, lead)
		}
	}
}
