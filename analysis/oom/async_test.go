// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// Stacks of PyTorch's backend cudaMallocAsync, at two lines.
const (
	asyncLoad = "libcudart.so!cudaMallocAsync libc10_cuda.so!c10::cuda::CUDACachingAllocator::CudaMallocAsync::mallocAsync " +
		"/home/a/train.py:10:load"
	asyncGrow = "libcudart.so!cudaMallocAsync libc10_cuda.so!c10::cuda::CUDACachingAllocator::CudaMallocAsync::mallocAsync " +
		"/home/a/train.py:8:grow"
)

// async is a call of the driver, which does not say of which device.
func (p *program) async(kind event.Kind, stack string, at, size uint64) {
	p.driver(kind, stack, base+at, size)
	e := &p.Events[len(p.Events)-1]
	e.Call, e.Device = "cudaMallocAsync", event.Device{Index: -1}
}

// TestAsync: of a process whose backend is cudaMallocAsync, its calls are blocks, and what else it has is not; its
// own refusals are decided, and an extension's is an error of the driver.
func TestAsync(t *testing.T) {
	for name, tt := range map[string]struct {
		size  uint64
		other bool // an extension asks
		total figures.Bytes
		want  Decision
	}{
		"full": {20 * mib, false, 100 * mib, Full}, "absurd": {101 * mib, false, 100 * mib, AbsurdRequest},
		"an extension": {16 * mib, true, 100 * mib, DriverError},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.async(event.KindAlloc, asyncLoad, 0, 60*mib)
			p.async(event.KindAlloc, asyncLoad, 100*mib, 10*mib)
			p.async(event.KindFree, asyncLoad, 100*mib, 10*mib)
			p.driver(event.KindAlloc, foreign, base+300*mib, 5*mib)
			p.Events[len(p.Events)-1].Device = event.Device{Index: -1}
			stack := asyncGrow
			if tt.other {
				stack = foreign
			}
			p.async(event.KindOutOfMemory, stack, 0, tt.size)
			at := p.now()
			used := figures.DriverUse{Device: 0, Used: 77 * mib, Total: tt.total, All: 82 * mib}
			others := []figures.Processes{{Device: 0, By: []figures.ProcessUse{{PID: 9, Used: 5 * mib}}}}
			r := p.find(t, Input{Ended: true, Readings: []figures.Reading{{Time: at + 1, Failed: at, Driver: []figures.DriverUse{used},
				Others: others}}})
			require.Len(t, r.Cases, 1)
			c := &r.Cases[0]
			require.Equal(t, tt.want, c.Decision)
			require.True(t, c.Async)
			require.Equal(t, event.Device{Type: event.DeviceCUDA}, c.Device)
			require.Equal(t, !tt.other, c.Own)
			require.Equal(t, []uint64{60 * mib, u, 5 * mib}, []uint64{c.Torch.Allocated, c.Torch.Reserved, c.Other.Bytes})
			require.Equal(t, []uint64{12 * mib, 5 * mib, 18 * mib}, []uint64{c.Context, c.Others, c.Free},
				"77 of the process are 60, 5 and what is left")
			require.Len(t, c.Top, 1)
			require.Equal(t, "train.py:10 load", c.Top[0].Site)
			require.EqualValues(t, 60*mib, c.Top[0].Bytes)
		})
	}
}
