// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// made is a case in which nothing but a full device explains the failure: 24 GiB, of which 512 MiB are free for 1
// GiB. Nothing followed it in earlier steps, of which nothing else is known.
func made(change func(c *Case)) *Case {
	c := &Case{
		Reported: true, Requested: gib, Asked: gib, Tries: 2, Total: 24 * gib, Others: 0, Free: 512 * mib, Context: 500 * mib,
		Limit: event.Unknown, Largest: 16 * mib, Pieces: 64 * mib, asks: true, Healthy: event.Unknown, usual: unknownUsual(),
		Torch: balance.Torch{Allocated: 22 * gib, Reserved: 23 * gib, Pending: event.Unknown},
	}
	change(c)
	return c
}

// trains is made of a program whose steps have peaked at so much, beginning with 20 GiB of 22, and at whose peaks 100 MiB were idle.
func trains(peak uint64, change func(c *Case)) *Case {
	return made(func(c *Case) {
		c.Healthy, c.Step = peak, 9
		c.usual = usual{floor: 20 * gib, rise: peak - 20*gib, net: 0, idle: 100 * mib, kept: 0, usualOther: 0, usualOthers: 0}
		change(c)
	})
}

// TestFewRises: a few equal rises at long equal distances are growth; others of low confidence can be a queue that fills.
func TestFewRises(t *testing.T) {
	for name, c := range map[string]struct {
		f    leaks.Finding
		want bool
	}{
		"certain":        {leaks.Finding{Kind: leaks.Growth, Confidence: leaks.Medium}, true},
		"each fold":      {leaks.Finding{Kind: leaks.Leak, Confidence: leaks.Low, Period: longPeriod}, true},
		"each step":      {leaks.Finding{Kind: leaks.Leak, Confidence: leaks.Low, Period: longPeriod - 1}, false},
		"varying amount": {leaks.Finding{Kind: leaks.Growth, Confidence: leaks.Low, Period: 40}, false},
	} {
		require.Equal(t, c.want, isCertain(&c.f), name)
	}
}

// found is a finding that has grown so far.
func found(bytes uint64, sure leaks.Confidence) []leaks.Finding {
	return []leaks.Finding{{Layer: event.LayerAllocator, LiveBytes: bytes, Confidence: sure}}
}

// decided is a case with its decision, LargerStep for Full by that, and what else suffices.
type decided struct {
	c    *Case
	want Decision
	also []Decision
}

func (d *decided) require(t *testing.T, name string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		d.c.decide()
		got := d.c.Decision
		if d.c.Larger {
			require.Equal(t, Full, got)
			got = LargerStep
		}
		require.Equal(t, d.want, got)
		require.Equal(t, d.also, d.c.Also)
	})
}

// TestDecide: one part of memory after the other is why.
func TestDecide(t *testing.T) {
	const larger = LargerStep
	for name, tt := range map[string]decided{
		"nothing else":                      {made(func(*Case) {}), Full, nil},
		"not reported":                      {made(func(c *Case) { c.Reported, c.Requested = false, 48*gib }), DriverError, nil},
		"larger than the device":            {made(func(c *Case) { c.Requested = 24*gib + 1 }), AbsurdRequest, nil},
		"as large as the device":            {made(func(c *Case) { c.Requested, c.Asked = 24*gib, 24*gib }), Full, nil},
		"larger than any device":            {made(func(c *Case) { c.Requested, c.Total = 1<<40+1, event.Unknown }), AbsurdRequest, nil},
		"of a device that is not known":     {made(func(c *Case) { c.Requested, c.Total = 48*gib, event.Unknown }), Full, nil},
		"a leak":                            {made(func(c *Case) { c.Findings = found(3*gib, leaks.High) }), Leak, nil},
		"a leak that is not sure":           {made(func(c *Case) { c.Findings = found(3*gib, leaks.Low) }), Full, nil},
		"a leak of less than was missing":   {made(func(c *Case) { c.Findings = found(512*mib-1, leaks.High) }), Full, nil},
		"a leak that freed something else":  {made(func(c *Case) { c.Findings, c.net = found(3*gib, leaks.High), 512*mib-1 }), Full, nil},
		"a leak, and more follows":          {made(func(c *Case) { c.Findings, c.Follows = found(3*gib, leaks.High), 3*gib }), Full, nil},
		"a leak, and as much follows":       {made(func(c *Case) { c.Findings, c.Follows = found(3*gib, leaks.High), 2*gib+512*mib }), Leak, nil},
		"pieces":                            {made(func(c *Case) { c.Pieces = 2 * gib }), Fragmentation, nil},
		"pieces with what is free":          {made(func(c *Case) { c.Pieces, c.Torch.Reserved = 512*mib, 4*gib }), Fragmentation, nil},
		"pieces, and more follows":          {made(func(c *Case) { c.Pieces, c.Follows = 2*gib, gib+512*mib+1 }), Full, nil},
		"pieces, of what is not known":      {made(func(c *Case) { c.Pieces, c.Follows = 2*gib, event.Unknown }), Full, nil},
		"more pieces, of what is not known": {made(func(c *Case) { c.Pieces, c.Follows = 6*gib, event.Unknown }), Fragmentation, nil},
		"pieces below a twentieth":          {made(func(c *Case) { c.Pieces = gib + 1 }), Full, nil},
		"a piece that is large enough":      {made(func(c *Case) { c.Pieces, c.Largest = 2*gib, gib }), Full, nil},
		"pieces, and a larger leak": {made(func(c *Case) { c.Pieces, c.Findings = 2*gib, found(3*gib, leaks.High) }), Leak,
			[]Decision{Fragmentation}},
		"pieces, and a smaller leak": {made(func(c *Case) { c.Pieces, c.Findings = 4*gib, found(3*gib, leaks.High) }), Fragmentation,
			[]Decision{Leak}},
		"another pool": {made(func(c *Case) { c.Pools = []PoolFree{{Private: true, Free: 2 * gib, Largest: gib}} }),
			PrivatePool, nil},
		"another pool, in pieces": {made(func(c *Case) { c.Pools = []PoolFree{{Private: true, Free: 2 * gib, Largest: gib - 1}} }),
			Full, nil},
		"another pool, whole segments": {made(func(c *Case) {
			c.Pools = []PoolFree{{Private: true, Free: 2 * gib, FreeWhole: 2 * gib,
				Largest: mib}}
		}), PrivatePool, nil},
		"its own pool": {made(func(c *Case) { c.Pools = []PoolFree{{Request: true, Free: 2 * gib, Largest: gib}} }), Full,
			nil},
		"its own limit":                   {made(func(c *Case) { c.Tries, c.Asked, c.Free = 0, event.Unknown, 4*gib }), Limit, nil},
		"its limit, of an unknown device": {made(func(c *Case) { c.Tries, c.Asked, c.Free = 0, event.Unknown, event.Unknown }), Limit, nil},
		"its limit, and others": {made(func(c *Case) { c.Tries, c.Asked, c.Free, c.Others = 0, event.Unknown, 4*gib, 9*gib }),
			Limit, nil},
		"its limit, and no more is free":   {made(func(c *Case) { c.Tries, c.Asked, c.Free = 0, event.Unknown, gib-1 }), Full, nil},
		"the driver's calls are not known": {made(func(c *Case) { c.Tries, c.Asked, c.asks = 0, event.Unknown, false }), Full, nil},
		"others":                           {made(func(c *Case) { c.Others = 3 * gib }), OtherProcess, nil},
		"others below a tenth":             {made(func(c *Case) { c.Others = 2 * gib }), Full, nil},
		"outside":                          {made(func(c *Case) { c.Other = heap.Count{Objects: 1, Bytes: 3 * gib} }), OutsidePyTorch, nil},
		"outside and more of others": {made(func(c *Case) { c.Other, c.Others = heap.Count{Objects: 1, Bytes: 3 * gib}, 4*gib }),
			OtherProcess, []Decision{OutsidePyTorch}},
		"more outside than others": {made(func(c *Case) { c.Other, c.Others = heap.Count{Objects: 1, Bytes: 4 * gib}, 3*gib }),
			OutsidePyTorch, []Decision{OtherProcess}},
		"others that are not known":         {made(func(c *Case) { c.Others, c.Free = event.Unknown, event.Unknown }), Full, nil},
		"a limit that was read, and obeyed": {made(func(c *Case) { c.limits = []uint64{23 * gib} }), Full, nil},
		"waits for another stream":          {made(func(c *Case) { c.Torch.Pending = 2 * gib }), PendingFrees, nil},
		"the optimizer's state":             {made(func(c *Case) { c.State = 2 * gib }), larger, nil},
		"a loop that loads":                 {made(func(c *Case) { c.Fill.Bytes = 20 * gib }), Loading, nil},
		"a loop that loads beside others":   {made(func(c *Case) { c.Fill.Bytes, c.Others = 20*gib, 3*gib }), OtherProcess, nil},
		"a forward pass":                    {made(func(c *Case) { c.Fill.Bytes, c.Fill.Phase = 20*gib, phases.Forward }), Full, nil},
	} {
		tt.require(t, name)
	}
}

// TestDecideSteps: what earlier steps show is usual.
func TestDecideSteps(t *testing.T) {
	const larger = LargerStep
	for name, tt := range map[string]decided{
		"a step like those before":     {trains(23*gib, func(*Case) {}), Full, nil},
		"a larger step":                {trains(22*gib+512*mib, func(*Case) {}), larger, nil},
		"a step that adds more":        {trains(23*gib, func(c *Case) { c.rise = 2*gib + 512*mib }), larger, nil},
		"a step that is hardly larger": {trains(22*gib+512*mib+1, func(*Case) {}), Full, nil},
		"what grew is no larger step": {trains(22*gib, func(c *Case) {
			c.Findings, c.net, c.rise = found(3*gib, leaks.High), 3*gib,
				3*gib
		}), Leak, nil},
		"others as always, a leak": {trains(23*gib, func(c *Case) {
			c.Others, c.usualOthers, c.Findings, c.net = 9*gib, 9*gib,
				found(gib, leaks.High), gib
		}), Leak, []Decision{OtherProcess}},
		"others that grow": {trains(23*gib, func(c *Case) { c.Others, c.usualOthers = 9*gib, 5*gib }), OtherProcess, nil},
		"others that grow more than it": {trains(23*gib, func(c *Case) {
			c.Others, c.usualOthers, c.Findings, c.net = 9*gib, 5*gib,
				found(gib, leaks.High), gib
		}), OtherProcess, []Decision{Leak}},
		"outside as always, a larger step": {trains(22*gib, func(c *Case) { c.Other.Bytes, c.usualOther = 5*gib, 5*gib }), larger,
			[]Decision{OutsidePyTorch}},
		"a limit as always, a leak": {trains(23*gib, func(c *Case) {
			c.Tries, c.Asked, c.Free, c.Findings, c.net = 0, event.Unknown, 9*gib, found(2*gib, leaks.High), 2*gib
		}), Leak, []Decision{Limit}},
		"pieces as always, a larger step": {trains(22*gib+512*mib, func(c *Case) { c.Pieces, c.idle = 2*gib, 2*gib }), larger,
			[]Decision{Fragmentation}},
		"more pieces than before": {trains(22*gib+512*mib, func(c *Case) { c.Pieces = 2 * gib }), Fragmentation, []Decision{LargerStep}},
		"a limit, a loop after the steps": {trains(22*gib, func(c *Case) {
			c.Tries, c.Asked, c.Free, c.Site, c.Grown.Site = 0, event.Unknown, 9*gib, "a.py:3", "a.py:3"
		}), Limit, nil},
		"a limit, an evaluation": {trains(22*gib, func(c *Case) {
			c.Tries, c.Asked, c.Free, c.Site, c.Grown.Site, c.Grown.Phase = 0, event.Unknown, 9*gib, "a.py:3", "a.py:3", phases.Forward
		}), larger, []Decision{Limit}},
		"only a loop after the steps": {trains(22*gib, func(c *Case) { c.Site, c.Grown.Site = "a.py:3", "a.py:3" }), larger, nil},
		"a graph's pool as always": {trains(22*gib+512*mib,
			func(c *Case) { c.Pools, c.kept = []PoolFree{{Private: true, Free: 2 * gib, FreeWhole: 2 * gib}}, 2*gib }), larger,
			[]Decision{PrivatePool}},
	} {
		tt.require(t, name)
	}
}

// TestDoubt: growth that may have ended comes after what else is enough, and a step outside the loop is no larger step.
func TestDoubt(t *testing.T) {
	both := func(d leaks.Doubt, more func(*Case)) *Case {
		return trains(22*gib, func(c *Case) {
			c.Findings, c.net, c.Doubt = found(3*gib, leaks.High), 3*gib, d
			more(c)
		})
	}
	none, others := func(*Case) {}, func(c *Case) { c.Others, c.usualOthers = 9*gib, 7*gib }
	for name, tt := range map[string]decided{
		"certain":                 {both("", none), Leak, []Decision{LargerStep}},
		"few rises":               {both(leaks.FewRises, none), LargerStep, []Decision{Leak}},
		"outside the loop":        {both(leaks.MayBeOver, none), Leak, []Decision{LargerStep}},
		"certain, and others":     {both("", others), Leak, []Decision{OtherProcess, LargerStep}},
		"few rises, and others":   {both(leaks.FewRises, others), OtherProcess, []Decision{LargerStep, Leak}},
		"outside, and others":     {both(leaks.MayBeOver, others), OtherProcess, []Decision{Leak, LargerStep}},
		"few rises, nothing else": {both(leaks.FewRises, func(c *Case) { c.rise = 3 * gib }), Leak, nil},
	} {
		tt.require(t, name)
	}
}

// TestFreePrivate: the request's own pool does not count, whatever it is.
func TestFreePrivate(t *testing.T) {
	c := made(func(c *Case) {
		c.Pools = []PoolFree{{Request: true, Private: true, Free: gib, Largest: gib}, {Private: true, Free: 2 * gib, Largest: mib},
			{Private: true, Free: gib, Largest: 2 * mib}}
	})
	free, largest := c.FreePrivate()
	require.Equal(t, []uint64{3 * gib, 2 * mib}, []uint64{free, largest})
}

// TestCached: what the caching allocator keeps it does not return for a request that is not its own.
func TestCached(t *testing.T) {
	c := made(func(c *Case) { c.Reported, c.Torch.Free = false, gib })
	c.decide()
	require.Equal(t, DriverError, c.Decision)
	require.Equal(t, Cause{Cached, gib, event.Unknown, Yes}, c.Causes[0])
	c = made(func(c *Case) { c.Torch.Free = gib })
	c.decide()
	require.Equal(t, Full, c.Decision)
}

// TestLimitBounds: a limit lies between what is reserved and what would have been.
func TestLimitBounds(t *testing.T) {
	for requested, segment := range map[uint64]uint64{512: 2 * mib, mib: 2 * mib, mib + 512: 20 * mib, 10*mib - 512: 20 * mib,
		10 * mib: 10 * mib, 11*mib + 512: 12 * mib} {
		c := made(func(c *Case) { c.Tries, c.Asked, c.Requested = 0, event.Unknown, requested })
		c.decide()
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
