// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// info adds that the driver reports to the program how many bytes of the device are free, of 100 MiB.
func (p *program) info(free uint64) {
	p.Add(event.Event{
		Kind: event.KindMemoryInfo, Layer: event.LayerDevice, Size: free, Requested: u, Stream: u, Allocated: u,
	})
	p.Events[len(p.Events)-1].Handle = 100 * mib
}

// TestMemoryInfo: PyTorch asks the driver what is free before it reports a failure. That is exact, and beats a reading.
func TestMemoryInfo(t *testing.T) {
	fail := func(then func(p *program), readings ...figures.Reading) *Case {
		p := newProgram()
		p.segment(0, 20*mib)
		p.block(keeps, 0, 2*mib, 0)
		p.driver(event.KindOutOfMemory, segment, 0, 80*mib)
		then(p)
		p.add(event.Event{Kind: event.KindOutOfMemory, Size: 80 * mib, Requested: u, Stream: u, Stack: p.ID(asks)})
		for i := range readings {
			readings[i].Time += p.now()
		}
		return &p.find(t, Input{Readings: append(readings, figures.Reading{Fresh: true})}).Cases[0]
	}
	c := fail(func(p *program) { p.info(30 * mib) })
	require.EqualValues(t, 30*mib, c.Free)
	require.EqualValues(t, 100*mib, c.Total)
	require.EqualValues(t, 50*mib, c.Unseen, "the context and other processes")
	require.True(t, c.UnseenExact)
	require.EqualValues(t, 50*mib, c.Need)

	c = fail(func(p *program) { p.info(30 * mib); p.block(keeps, 2*mib, mib, 0) })
	require.Equal(t, u, c.Free, "another request came between")
	require.False(t, c.UnseenExact)
	c = fail(func(p *program) {})
	require.Equal(t, u, c.Free)

	device := func(read uint64, others uint64) figures.Reading {
		use := figures.ProcessUse{PID: 2, Used: figures.Bytes(others)}
		return figures.Reading{
			Time: read, Driver: []figures.DriverUse{{Used: 25 * mib, All: figures.Bytes(25*mib + others), Total: 100 * mib}},
			Others: []figures.Processes{{By: []figures.ProcessUse{use}}},
		}
	}
	const before = ^uint64(0) - 4
	c = fail(func(p *program) { p.info(30 * mib) }, device(before, 10*mib))
	require.EqualValues(t, 30*mib, c.Free, "the others have got more since")
	require.EqualValues(t, 45*mib, c.Others)
	require.Zero(t, c.Returned)
	require.False(t, c.UnseenExact)
}

// TestServed: a line that got as much before the first step does not make its step larger by asking again.
func TestServed(t *testing.T) {
	r := &requests{}
	r.see("validate", 300*mib, 0)
	for step := 1; step < 5; step++ {
		r.see("train", mib, step)
	}
	require.EqualValues(t, 0, r.lines["validate"].early, "not before the step ends")
	r.see("validate", mib, 5)
	require.EqualValues(t, 300*mib, r.lines["validate"].early)
	require.Zero(t, r.lines["train"].early)
	c := func(served bool) Cause {
		x := &Case{Requested: 300 * mib, Healthy: 200 * mib, Limit: u, Free: u, served: served, usual: unknownUsual()}
		x.Torch.Allocated = 150 * mib
		return x.larger()
	}
	require.EqualValues(t, 250*mib, c(false).Bytes)
	require.Zero(t, c(true).Bytes)
}
