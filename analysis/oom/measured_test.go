// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestContext: what the driver counts for the process beyond segments and what others in it obtained, by hand. Where the allocator's own
// total was read at the same moment, that counts and not the segments.
func TestContext(t *testing.T) {
	use := func(device int, used figures.Bytes) figures.DriverUse {
		return figures.DriverUse{Device: device, Used: used, Total: 100 * mib}
	}
	torch := func(device int, reserved figures.Bytes) figures.TorchMemory {
		return figures.TorchMemory{Device: device, Reserved: reserved}
	}
	for name, tt := range map[string]struct {
		driver []figures.DriverUse
		torch  []figures.TorchMemory
		want   uint64
	}{
		"42 of segments and 5 of libfoo":  {[]figures.DriverUse{use(0, 57*mib)}, nil, 10 * mib},
		"the allocator says 44":           {[]figures.DriverUse{use(0, 57*mib)}, []figures.TorchMemory{torch(0, 44*mib)}, 8 * mib},
		"the allocator of another device": {[]figures.DriverUse{use(0, 57*mib)}, []figures.TorchMemory{torch(1, 44*mib)}, 10 * mib},
		"two devices":                     {[]figures.DriverUse{use(1, 99*mib), use(0, 48*mib)}, []figures.TorchMemory{torch(1, 9*mib), torch(0, 41*mib)}, 2 * mib},
		"less than is known":              {[]figures.DriverUse{use(0, 46*mib)}, []figures.TorchMemory{torch(0, 42*mib)}, u},
		"the allocator's is not known":    {[]figures.DriverUse{use(0, 57*mib)}, []figures.TorchMemory{torch(0, figures.Unknown)}, u},
	} {
		t.Run(name, func(t *testing.T) {
			p := divided()
			r := p.find(t, Input{Readings: []figures.Reading{{Time: p.now() - 1, Driver: tt.driver, Torch: tt.torch}}})
			require.Equal(t, tt.want, r.Cases[0].Context)
		})
	}
}

// TestContextBeforeAttach: where segments are from before the attach, only the allocator's own total says how much they are.
func TestContextBeforeAttach(t *testing.T) {
	for name, tt := range map[string]struct {
		torch []figures.TorchMemory
		want  uint64
	}{
		"not read": {nil, u}, "read": {[]figures.TorchMemory{{Device: 0, Reserved: 25 * mib}}, 5 * mib},
	} {
		p := newProgram()
		p.allocated, p.reserved = mib, 20*mib
		p.block(keeps, 0, mib, 0)
		p.fail(16*mib, 1)
		r := p.find(t, Input{Readings: []figures.Reading{{Time: p.now() - 1, Driver: []figures.DriverUse{{Device: 0, Used: 30 * mib, Total: 40 * mib}}, Torch: tt.torch}}})
		require.Equal(t, tt.want, r.Cases[0].Context, name)
	}
}

// TestDriverError: a call of the driver that fails without a report is on the device of the only allocator of its process when it names none,
// and on its own when it does.
func TestDriverError(t *testing.T) {
	for name, tt := range map[string]struct{ index, want int8 }{"names none": {-1, 0}, "names it": {0, 0}, "another": {1, 1}} {
		p := divided()
		p.Events = p.Events[:len(p.Events)-3]
		p.driver(event.KindOutOfMemory, foreign, 0, 7*mib)
		p.Events[len(p.Events)-1].Device.Index = tt.index
		if tt.index < 0 {
			p.Events[len(p.Events)-1].Device = event.Device{Index: -1}
		}
		r := p.find(t, Input{Ended: true})
		require.Len(t, r.Cases, 1, name)
		c := &r.Cases[0]
		require.False(t, c.Reported)
		require.Equal(t, DriverError, c.Decision, name)
		require.Equal(t, tt.want, c.Device.Index, name)
		require.Equal(t, "cudaMalloc", c.Call)
		require.EqualValues(t, 7*mib, c.Requested)
		if tt.want == 0 {
			require.EqualValues(t, 42*mib, c.Torch.Reserved, name)
		}
	}
}

// TestLargestGrowth: a line stands out when it has eight blocks or more, half of all that is allocated, and that is twice what it was.
func TestLargestGrowth(t *testing.T) {
	count := func(objects, bytes uint64) heap.Count { return heap.Count{Objects: objects, Bytes: bytes} }
	for name, tt := range map[string]struct {
		sites   map[string]heap.Count
		healthy uint64
		want    string
	}{
		"at all bounds":      {map[string]heap.Count{"a": count(8, 50), "b": count(9, 49)}, 50, "a"},
		"few blocks":         {map[string]heap.Count{"a": count(7, 50)}, 50, ""},
		"less than half":     {map[string]heap.Count{"a": count(8, 49)}, 50, ""},
		"not twice as much":  {map[string]heap.Count{"a": count(8, 50)}, 51, ""},
		"nothing":            {nil, 50, ""},
		"the first by name":  {map[string]heap.Count{"b": count(8, 50), "a": count(8, 50)}, 50, "a"},
		"not the largest":    {map[string]heap.Count{"a": count(1, 60), "b": count(8, 55)}, 50, ""},
		"many more than all": {map[string]heap.Count{"a": count(800, 100)}, 1, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Case{Healthy: tt.healthy, Torch: balance.Torch{Allocated: 100}, Top: []Holding{
				{Site: "a", Holder: "x", Count: count(1, 3)}, {Site: "a", Holder: "y", Count: count(1, 5)}, {Site: "a", Holder: view.NoHolder, Count: count(1, 40)},
				{Site: "b", Holder: "z", Count: count(1, 9)}, {Site: "a", Holder: "w", Count: count(1, 4)},
			}}
			c.setLargestGrowth(tt.sites)
			require.Equal(t, tt.want, c.Grown.Site)
			if tt.want != "" {
				require.Equal(t, []any{"y", uint64(5)}, []any{c.Grown.Holder, c.Grown.Held}, "the holder of most of it")
				require.Equal(t, tt.sites[tt.want], c.Grown.Count)
			}
		})
	}
}

// trained writes complete steps, the optimizer of which keeps state where that is asked for.
func trained(n int, state bool) *program {
	p := newProgram()
	p.segment(0, 256*mib)
	p.block(keeps, 0, mib, 0)
	for range n {
		for k, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
			p.block(stack, 10*mib, mib+uint64(k), 0)
			p.free(10*mib, mib+uint64(k))
		}
	}
	if state {
		p.block(eventtest.Adam, 20*mib, mib, 0)
	}
	return p
}

// failIn is a request of a line that is refused.
func (p *program) failIn(stack string, size uint64) {
	p.fail(size, 1)
	p.Events[len(p.Events)-1].Stack = p.ID(stack)
}

// TestState: in the optimizer's first step, what it has allocated is its state; where it had some before, the step is not its first.
func TestState(t *testing.T) {
	for name, tt := range map[string]struct {
		before bool
		fails  string
		want   uint64
	}{
		"first step": {false, eventtest.Adam, 5 * mib}, "a later step": {true, eventtest.Adam, 0}, "another phase": {false, eventtest.Forward, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := trained(6, tt.before)
			for _, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward} {
				p.block(stack, 10*mib, mib, 0)
				p.free(10*mib, mib)
			}
			p.block(eventtest.Adam, 30*mib, 2*mib, 0)
			p.block(eventtest.Adam, 40*mib, 3*mib, 0)
			p.failIn(tt.fails, 16*mib)
			c := &p.find(t, Input{}).Cases[0]
			require.Equal(t, tt.want, c.State)
		})
	}
}

// TestGrown: what a line has allocated since the step of the failure began, and not what it had before.
func TestGrown(t *testing.T) {
	p := trained(6, false)
	p.block(eventtest.Input, 10*mib, mib, 0)
	for i := range uint64(10) {
		p.block(keepsToo, (30+i)*mib, mib, 0)
	}
	p.failIn(eventtest.Forward, 200*mib)
	c := &p.find(t, Input{}).Cases[0]
	require.Equal(t, "train.py:11 load", c.Grown.Site)
	require.Equal(t, heap.Count{Objects: 10, Bytes: 10 * mib, Requested: 10*mib - 10, RequestedObjects: 10}, c.Grown.Count)
	require.EqualValues(t, 2*mib+3, c.Healthy, "1 MiB that stays, and the largest temporary")
	early := trained(6, false)
	for i := range uint64(10) {
		early.block(keepsToo, (30+i)*mib, mib, 0)
	}
	early.block(eventtest.Backward, 10*mib, mib, 0)
	early.block(eventtest.Adam, 11*mib, mib, 0)
	early.block(eventtest.Input, 12*mib, mib, 0)
	early.failIn(eventtest.Forward, 200*mib)
	require.Empty(t, early.find(t, Input{}).Cases[0].Grown.Site, "that was in an earlier step")
}

// TestNeedExact: of a device with exactly as much free as was asked for, all of it had to be free.
func TestNeedExact(t *testing.T) {
	for free, want := range map[uint64]uint64{gib - 1: 1, gib: gib, gib + 1: gib} {
		c := made(func(c *Case) { c.Free = free })
		c.decide()
		require.Equal(t, want, c.Need, "free %d", free)
	}
	c := made(func(c *Case) { c.Asked = event.Unknown })
	c.decide()
	require.EqualValues(t, 512*mib, c.Need, "the driver would be asked for a segment of 1 GiB")
	c = made(func(c *Case) { c.Asked, c.Reported, c.Requested = event.Unknown, false, gib+mib })
	c.decide()
	require.EqualValues(t, 513*mib, c.Need, "of a call of the driver, what it was given")
}
