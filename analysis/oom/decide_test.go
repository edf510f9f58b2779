// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// made is a case in which nothing but a full device explains the failure: 24 GiB, of which 512 MiB are free for 1 GiB.
func made(change func(c *Case)) *Case {
	c := &Case{
		Reported: true, Requested: gib, Asked: gib, Tries: 2, Total: 24 * gib, Others: 0, Free: 512 * mib, Context: 500 * mib,
		Limit: event.Unknown, Largest: 16 * mib, Pieces: 64 * mib, asks: true,
		Torch: balance.Torch{Allocated: 22 * gib, Reserved: 23 * gib},
	}
	change(c)
	return c
}

// found is a finding that has grown so far.
func found(bytes uint64, sure leaks.Confidence) []leaks.Finding {
	return []leaks.Finding{{Layer: event.LayerTorch, LiveBytes: bytes, Confidence: sure}}
}

func TestDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *Case)
		want   Decision
	}{
		"nothing else":                      {func(*Case) {}, Full},
		"not reported":                      {func(c *Case) { c.Reported, c.Requested = false, 48*gib }, DriverError},
		"larger than the device":            {func(c *Case) { c.Requested = 24*gib + 1 }, AbsurdRequest},
		"as large as the device":            {func(c *Case) { c.Requested, c.Asked = 24*gib, 24*gib }, Full},
		"of a device that is not known":     {func(c *Case) { c.Requested, c.Total = 48*gib, event.Unknown }, Full},
		"a leak":                            {func(c *Case) { c.Findings = found(3*gib, leaks.High) }, Leak},
		"a leak that is not sure":           {func(c *Case) { c.Findings = found(3*gib, leaks.Low) }, Full},
		"a leak below a tenth":              {func(c *Case) { c.Findings = found(2*gib, leaks.High) }, Full},
		"a leak of less than was missing":   {func(c *Case) { c.Findings, c.Torch.Allocated = found(511*mib, leaks.High), gib }, Full},
		"pieces":                            {func(c *Case) { c.Pieces = 2 * gib }, Fragmentation},
		"pieces, and more in this step":     {func(c *Case) { c.Pieces, c.Healthy, c.Grown.Site = 2*gib, 20*gib-1, "eval.py:3" }, Full},
		"pieces, and as much in this step":  {func(c *Case) { c.Pieces, c.Healthy, c.Grown.Site = 2*gib, 20*gib, "eval.py:3" }, Fragmentation},
		"pieces, and more of all lines":     {func(c *Case) { c.Pieces, c.Healthy = 2*gib, 10*gib }, Fragmentation},
		"pieces, and less than before":      {func(c *Case) { c.Pieces, c.Healthy, c.Grown.Site = 2*gib, 23*gib, "eval.py:3" }, Fragmentation},
		"pieces below a twentieth":          {func(c *Case) { c.Pieces = gib + 1 }, Full},
		"pieces of less than the request":   {func(c *Case) { c.Pieces, c.Torch.Reserved = gib-1, gib }, Full},
		"a piece that is large enough":      {func(c *Case) { c.Pieces, c.Largest = 2*gib, gib }, Full},
		"a leak and pieces":                 {func(c *Case) { c.Pieces, c.Findings = 2*gib, found(3*gib, leaks.High) }, Leak},
		"another pool":                      {func(c *Case) { c.Pools = []PoolFree{{Private: true, Free: 2 * gib, Largest: gib}} }, PrivatePool},
		"another pool, in pieces":           {func(c *Case) { c.Pools = []PoolFree{{Private: true, Free: 2 * gib, Largest: gib - 1}} }, Full},
		"its own pool":                      {func(c *Case) { c.Pools = []PoolFree{{Request: true, Free: 2 * gib, Largest: gib}} }, Full},
		"the driver was not asked":          {func(c *Case) { c.Tries, c.Asked = 0, event.Unknown }, Limit},
		"the driver's calls are not known":  {func(c *Case) { c.Tries, c.Asked, c.asks = 0, event.Unknown, false }, Full},
		"others":                            {func(c *Case) { c.Others = 3 * gib }, OtherProcess},
		"others below a tenth":              {func(c *Case) { c.Others = 2 * gib }, Full},
		"outside":                           {func(c *Case) { c.Other = heap.Count{Objects: 1, Bytes: 3 * gib} }, OutsidePyTorch},
		"outside and more of others":        {func(c *Case) { c.Other, c.Others = heap.Count{Objects: 1, Bytes: 3 * gib}, 4*gib }, OtherProcess},
		"more outside than others":          {func(c *Case) { c.Other, c.Others = heap.Count{Objects: 1, Bytes: 4 * gib}, 3*gib }, OutsidePyTorch},
		"others that are not known":         {func(c *Case) { c.Others, c.Free = event.Unknown, event.Unknown }, Full},
		"a limit that was read, and obeyed": {func(c *Case) { c.limits = []uint64{23 * gib} }, Full},
	} {
		t.Run(name, func(t *testing.T) {
			c := made(tt.change)
			c.decide()
			require.Equal(t, tt.want, c.Decision)
		})
	}
}

// TestAlso: beside a leak all that takes the place is said; of other decisions the first that holds is all.
func TestAlso(t *testing.T) {
	c := made(func(c *Case) {
		c.Findings, c.Pieces, c.Others = found(3*gib, leaks.High), 2*gib, 4*gib
		c.Pools = []PoolFree{{Request: true, Private: true, Free: gib, Largest: gib}, {Private: true, Free: 2 * gib, Largest: mib}, {Private: true, Free: gib, Largest: 2 * mib}}
	})
	c.decide()
	require.Equal(t, Leak, c.Decision)
	require.Equal(t, []Decision{Fragmentation, OtherProcess}, c.Also)
	free, largest := c.FreePrivate()
	require.Equal(t, []uint64{3 * gib, 2 * mib}, []uint64{free, largest}, "of pools that are not the request's")
	c = made(func(c *Case) { c.Pieces, c.Others = 2*gib, 4*gib })
	c.decide()
	require.Equal(t, Fragmentation, c.Decision)
	require.Empty(t, c.Also)
	c = made(func(c *Case) { c.Findings = found(3*gib, leaks.High) })
	c.decide()
	require.Empty(t, c.Also)
}

// TestLimitBounds: a limit lies between what is reserved and what would have been.
func TestLimitBounds(t *testing.T) {
	for requested, segment := range map[uint64]uint64{512: 2 * mib, mib: 2 * mib, mib + 512: 20 * mib, 10*mib - 512: 20 * mib, 10 * mib: 10 * mib, 11*mib + 512: 12 * mib} {
		c := made(func(c *Case) { c.Tries, c.Asked, c.Requested = 0, event.Unknown, requested })
		c.decide()
		require.Equal(t, Limit, c.Decision)
		require.Equal(t, []uint64{23 * gib, 23*gib + segment}, []uint64{c.Limit, c.LimitBelow})
		require.Equal(t, segment, c.Need)
	}
}

// TestLimitRead: of what was read, that is the limit which the refusal allows.
func TestLimitRead(t *testing.T) {
	for name, tt := range map[string]struct {
		read        []uint64
		asks        bool
		limit, less uint64
		need        uint64
	}{
		"exact":                             {[]uint64{23*gib + 512*mib + 1}, true, 23*gib + 512*mib + 1, 0, 512*mib - 1},
		"all that is reserved":              {[]uint64{23 * gib}, true, 23 * gib, 0, gib},
		"other words":                       {[]uint64{7, 23*gib + 5, 24 * gib, 1 << 40}, true, 23*gib + 5, 0, gib - 5},
		"two that can be":                   {[]uint64{23*gib + 5, 23*gib + 6}, true, 23 * gib, 24 * gib, gib},
		"none":                              {[]uint64{23*gib - 1, 24 * gib}, true, 23 * gib, 24 * gib, gib},
		"the driver's calls are not known":  {[]uint64{23*gib + 5}, false, 23*gib + 5, 0, gib - 5},
		"neither read nor the driver known": {nil, false, event.Unknown, 0, 512 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			c := made(func(c *Case) { c.Tries, c.Asked, c.asks, c.limits = 0, event.Unknown, tt.asks, tt.read })
			c.decide()
			require.Equal(t, []uint64{tt.limit, tt.less, tt.need}, []uint64{c.Limit, c.LimitBelow, c.Need})
		})
	}
}

func TestNeed(t *testing.T) {
	c := made(func(*Case) {})
	c.decide()
	require.EqualValues(t, 512*mib, c.Need, "what was asked for less what was free")
	c = made(func(c *Case) { c.Free = event.Unknown })
	c.decide()
	require.EqualValues(t, gib, c.Need)
}

func TestMainCase(t *testing.T) {
	r := &Report{}
	require.Nil(t, r.Main())
	r.Cases = []Case{{Number: 1, Caught: No}, {Number: 2, Caught: Yes}}
	require.Equal(t, 1, r.Main().Number)
	require.Equal(t, 1, r.Fatal())
	r.Cases[0].Caught = Yes
	require.Equal(t, 2, r.Main().Number)
	require.Zero(t, r.Fatal())
	r.Cases[1].Caught = Unknown
	require.Equal(t, 1, r.Fatal())
}
