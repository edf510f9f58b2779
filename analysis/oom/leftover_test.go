// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const optim = "/v/lib/python3.11/site-packages/torch/optim/"

// stateIn is a stack of an optimizer that makes its state, called by lines of the program.
func stateIn(callers string) string {
	return strings.Replace(eventtest.Adam, "/home/a/train.py:22:main", callers, 1)
}

// makesStateIn is stateIn where PyTorch's optimizers make theirs.
func makesStateIn(callers string) string {
	return strings.Replace(stateIn(callers), "_multi_tensor_adam ", "_multi_tensor_adam "+optim+"adam.py:150:Adam._init_group ", 1)
}

// TestEnded: state of an optimizer is left over where the function that used it has returned and another optimizer
// makes state of its own, as far apart as phases are; optimizers that take turns, and a second group of parameters
// of the same one, leave nothing.
func TestEnded(t *testing.T) {
	const tune, fit = "/home/a/train.py:9:Trainer.steps /home/a/train.py:30:Trainer.tune /home/a/train.py:50:main",
		"/home/a/train.py:9:Trainer.steps /home/a/train.py:33:Trainer.fit /home/a/train.py:51:main"
	for name, tt := range map[string]struct {
		steps    int
		old, new string
		size     uint64 // of the newer state
		want     uint64
		call     string
	}{
		"another function":         {10, tune, fit, 2 * mib, 6 * mib, "Trainer.tune"},
		"other sizes":              {10, tune, fit, 3 * mib, 6 * mib, "Trainer.tune"},
		"soon, but the same sizes": {4, tune, fit, 2 * mib, 6 * mib, "Trainer.tune"},
		"soon, and other sizes":    {4, tune, fit, 3 * mib, 0, ""},
		"the same calls":           {10, tune, tune, 2 * mib, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 20*mib)
			p.segment(20*mib, 20*mib)
			p.segment(40*mib, 20*mib)
			for n := range tt.steps {
				for _, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, stateIn(tt.old)} {
					p.block(stack, 10*mib, mib, 0)
					p.free(10*mib, mib)
				}
				for k := uint64(0); n == 0 && k < 3; k++ {
					p.block(makesStateIn(tt.old), (20+2*k)*mib, 2*mib, 0)
				}
			}
			for _, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward} {
				p.block(stack, 10*mib, mib, 0)
				p.free(10*mib, mib)
			}
			p.block(makesStateIn(tt.new), 40*mib, tt.size, 0)
			p.failIn(makesStateIn(tt.new), tt.size)
			c := &p.find(t, Input{}).Cases[0]
			require.Equal(t, tt.want, c.Ended.Bytes)
			require.Equal(t, tt.want, c.Cause(EarlierPhase).Bytes)
			if tt.want > 0 {
				require.Equal(t, tt.call, c.Ended.Call)
				require.Equal(t, tt.size, c.State, "of the newer one")
			}
		})
	}
}

// TestLoaded: what was loaded from a file and has the sizes of parameters is a second copy, as much of it as there
// are such parameters; the state of an optimizer that was loaded with it is none.
func TestLoaded(t *testing.T) {
	load := eventtest.Report + " /v/lib/python3.11/site-packages/torch/serialization.py:1400:load /home/a/train.py:5:main"
	build := eventtest.Report + " /v/lib/python3.11/site-packages/torch/nn/modules/module.py:900:Module._apply /home/a/train.py:6:main"
	for name, tt := range map[string]struct{ loaded, built, want uint64 }{
		"beside the model": {9, 3, 3 * mib}, "in place of the model": {9, 0, 0}, "a part of the model": {1, 3, 0}, "half of it": {2, 4, 2 * mib},
	} {
		p := newProgram()
		p.segment(0, 20*mib)
		for k := range tt.loaded {
			p.block(load, k*mib, mib, 0)
		}
		for k := range tt.built {
			p.block(build, (10+k)*mib, mib, 0)
		}
		p.block(eventtest.Forward, 15*mib, mib, 0)
		p.fail(16*mib, 2)
		c := &p.find(t, Input{}).Cases[0]
		require.Equal(t, tt.want, c.Loaded.Bytes, name)
	}
	p := newProgram()
	p.segment(0, 20*mib)
	p.block(load, 0, mib, 0)
	p.block(build, mib, mib, 0)
	p.block(eventtest.Forward, 15*mib, mib, 0)
	p.failIn(load, 16*mib)
	c := &p.find(t, Input{}).Cases[0]
	require.Zero(t, c.Loaded.Bytes, "it is just being loaded")
	require.EqualValues(t, mib, c.Loading.Bytes)
	require.Equal(t, "train.py:5 main", c.Loading.Site)
	p = newProgram()
	p.segment(0, 20*mib)
	p.block(load, 0, mib, 0)
	p.block(eventtest.Forward, 2*mib, 3*mib, 0)
	p.failIn(load, 16*mib)
	require.Zero(t, p.find(t, Input{}).Cases[0].Loading.Bytes, "nothing has the sizes of what is loaded")
}

// TestElsewhere: other devices of the process, and what was gathered on the one that is full.
func TestElsewhere(t *testing.T) {
	p := newProgram()
	p.segment(0, 20*mib)
	p.block(keeps, 0, mib, 0)
	other := event.Device{Type: event.DeviceCUDA, Index: 1}
	p.Add(event.Event{
		Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: 99 * mib, Size: mib, Requested: mib, Stream: u, Allocated: mib,
		Stack: p.ID(keeps),
	})
	p.Events[len(p.Events)-1].Device, p.Events[len(p.Events)-1].Reserved = other, 2*mib
	p.fail(16*mib, 2)
	c := &p.find(t, Input{Readings: []figures.Reading{{Sizes: []figures.DeviceSize{{Device: 1, Bytes: 40 * mib}}}}}).Cases[0]
	require.Equal(t, []DeviceUse{{Device: other, Used: 2 * mib, Total: 40 * mib}}, c.Elsewhere)
	require.Zero(t, c.Gathered)
}

// TestUnseen: without NVML, a refusal says how much of the device the process does not have itself.
func TestUnseen(t *testing.T) {
	const gib = 1 << 30
	for name, tt := range map[string]struct {
		total    uint64
		unseen   uint64
		decision Decision
	}{
		"a context is enough":   {800 * mib, 764 * mib, Full},
		"more than a context":   {3 * gib, 3*gib - 36*mib, OtherProcess},
		"the size is not known": {u, 0, Full},
	} {
		p := newProgram()
		p.segment(0, 20*mib)
		p.block(keeps, 0, 20*mib, 0)
		p.fail(16*mib, 2)
		var in Input
		if tt.total != u {
			in.Readings = []figures.Reading{{Fresh: true, Sizes: []figures.DeviceSize{{Bytes: figures.Bytes(tt.total)}}}}
		}
		c := &p.find(t, in).Cases[0]
		require.Equal(t, tt.unseen, c.Unseen, name)
		require.Equal(t, tt.decision, c.Decision, name)
	}
	before := func(allocated uint64, fresh bool) *Case {
		p := newProgram()
		p.allocated, p.reserved = allocated, allocated
		p.segment(0, 20*mib)
		p.block(keeps, 0, 20*mib, 0)
		p.fail(16*mib, 2)
		return &p.find(t, Input{Readings: []figures.Reading{{Fresh: fresh, Sizes: []figures.DeviceSize{{Bytes: 3 * gib}}}}}).Cases[0]
	}
	require.Zero(t, before(mib, true).Unseen, "PyTorch had memory before the trace, and so can others in the process")
	require.Zero(t, before(0, false).Unseen, "the process may have had memory before the trace")
	require.NotZero(t, before(0, true).Unseen)
}

// TestMoreLoaded: a variable that holds what was loaded several times over is all left over, and one that holds other things is not.
func TestMoreLoaded(t *testing.T) {
	for held, want := range map[uint64]uint64{6 * mib: 6 * mib, 5 * mib: 3 * mib} {
		c := Case{
			Loaded: Leftover{Site: "resume.py:4 main", Holder: view.NoHolder, Count: heap.Count{Bytes: 3 * mib}},
			Top: []Holding{
				{Site: "resume.py:4 main", Holder: "optimizer.state", Category: phases.OptimizerState, Count: heap.Count{Bytes: 9 * mib}},
				{Site: "resume.py:4 main", Holder: "checkpoint", Category: phases.Parameters, Count: heap.Count{Bytes: held}},
			},
		}
		c.moreLoaded()
		require.Equal(t, want, c.Loaded.Bytes)
		require.Equal(t, want == held, c.Loaded.Holder == "checkpoint")
	}
}
