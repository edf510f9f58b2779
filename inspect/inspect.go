// SPDX-License-Identifier: Apache-2.0

// Package inspect reads, without any probe, what PyTorch's caching allocator has written down about a process's GPU memory:
// totals of each device, and every segment and block. Nothing runs in the target; its memory is read from outside. The
// layouts of the allocator's private structures are taken from its own code or found by search, and believed only when what
// was read with them balances.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/process"
)

// Errors on which callers branch. They are wrapped by errors that say what was found.
var (
	// ErrNoAllocator: no library with a CUDA caching allocator is mapped, or it has not chosen an allocator yet.
	ErrNoAllocator = errors.New("no caching allocator")
	// ErrOtherBackend: the program uses another allocator than PyTorch's native one; the error names it.
	ErrOtherBackend = errors.New("not the native allocator")
	// ErrUnknownLayout: the allocator's structures could not be found, or do not balance.
	ErrUnknownLayout = errors.New("unknown layout")
	// ErrChanged: the allocator was busy all the time. It can be tried again.
	ErrChanged = errors.New("changed while being read")
)

// DeviceTotals is what the allocator itself counts for one device.
type DeviceTotals struct {
	Device    int    // as the program numbers it
	Allocated uint64 // bytes of blocks that the program holds: torch.cuda.memory_allocated
	Reserved  uint64 // bytes of segments: torch.cuda.memory_reserved
}

// Unknown marks a size that the allocator does not keep. It is never 0: 0 is a real value.
const Unknown = ^uint64(0)

// Allocator is the caching allocator of a process. It is not safe for concurrent use. It stays valid as long as the
// process runs and does not change its allocator.
type Allocator struct {
	memory process.Memory
	native uint64 // address of the NativeCachingAllocator
	layout
	places *places  // nil until a map was proved
	sizes  []uint64 // of the devices, as DeviceSizes; nil until it was asked
}

// layout is where things may be, the likeliest place first. guessed says that the code did not tell: then only figures
// that are not all zero prove a place.
type layout struct {
	vectors        []uint64 // of the devices' objects, in the allocator
	totals         []uint64 // allocated bytes, in a device's object
	shapes         []shape
	mutexSize      uint64 // bytes
	guessedVectors bool
	guessedTotals  bool
}

// device is the object that has one device's state.
type device struct {
	addr  uint64
	limit uint64 // bytes that belong to it at most
	stats uint64 // address of its statistics
	mutex uint64 // address of its mutex, which lies in front of them
}

const maxDevices = 128 // c10 numbers them with an int8

// Totals reads the totals of all devices that the program can use, by their number. A device without an allocation has
// totals of 0; the list is empty when CUDA is not initialised. It takes microseconds and does not need the map to balance:
// the statistics that hold the totals are proved by themselves. Errors wrap ErrUnknownLayout, those of package process or, when
// ctx ended it, its cause.
func (a *Allocator) Totals(ctx context.Context) ([]DeviceTotals, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]DeviceTotals, len(devices))
	for i, d := range devices {
		s, err := a.stats(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("read the totals of device %d: %w", i, err)
		}
		out[i] = s.totals(i)
	}
	return out, nil
}

func (s *stats) totals(device int) DeviceTotals {
	return DeviceTotals{Device: device, Allocated: s.current(statAllocatedBytes, 0), Reserved: s.current(statReservedBytes, 0)}
}

// stats reads a device's statistics until they hold together: they are written word by word, and the thread that does it
// can be held up meanwhile.
func (a *Allocator) stats(ctx context.Context, d device) (*stats, error) {
	for end, n := time.Now().Add(settleTimeout), 0; ; n++ {
		s, err := readStats(a.memory, d.stats)
		if err != nil {
			return nil, err
		}
		wrong := s.check()
		switch {
		case wrong == nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case n < eagerPolls:
		case lockOf(a.memory, d.mutex) == lockUnknown || time.Now().After(end):
			return nil, fmt.Errorf("%w: %w", ErrUnknownLayout, wrong)
		default:
			time.Sleep(pollPause)
		}
	}
}

// devices finds the objects of all devices. The allocator grows their list once, when CUDA is initialised, but it is
// looked up and proved at every call.
func (a *Allocator) devices(ctx context.Context) ([]device, error) {
	empty := false
	var last error
	for _, vector := range a.vectors {
		objects, err := a.vector(vector)
		if err != nil {
			last = err
			continue
		}
		if len(objects) == 0 {
			empty = empty || !a.guessedVectors
			continue
		}
		for _, total := range a.totals {
			if last = a.proveDevices(ctx, objects, total); last == nil {
				return a.newDevices(objects, total), nil
			}
		}
	}
	switch {
	case empty:
		return nil, nil
	case last == nil:
		last = errors.New("no list of devices")
	}
	return nil, fmt.Errorf("find the allocator state of the devices: %w: %w", ErrUnknownLayout, last)
}

// vector reads a std::vector of pointers: begin, end, end of its capacity.
func (a *Allocator) vector(off uint64) ([]uint64, error) {
	w, err := words(a.memory, a.native+off, 3)
	if err != nil {
		return nil, err
	}
	begin, end, capacity := w[0], w[1], w[2]
	if begin == 0 && end == 0 && capacity == 0 {
		return nil, nil
	}
	if !pointer(begin) || !pointer(end) || end <= begin || end-begin > 8*maxDevices || capacity < end {
		return nil, fmt.Errorf("no list of devices at %#x of the allocator", off)
	}
	objects, err := words(a.memory, begin, int(end-begin)/8)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(objects, func(p uint64) bool { return !pointer(p) }) {
		return nil, fmt.Errorf("no pointers in the list of devices at %#x of the allocator", off)
	}
	return objects, nil
}

// proveDevices checks that every object has statistics at one place.
func (a *Allocator) proveDevices(ctx context.Context, objects []uint64, total uint64) error {
	evidence := !a.guessedVectors && !a.guessedTotals
	for _, o := range objects {
		s, err := a.stats(ctx, device{stats: o + total - statAllocatedBytes*statSize})
		if err != nil {
			return err
		}
		evidence = evidence || !s.empty()
	}
	if !evidence {
		return errors.New("nothing was allocated yet that could prove the layout")
	}
	return nil
}

func (l *layout) newDevices(objects []uint64, total uint64) []device {
	out := make([]device, len(objects))
	for i, o := range objects {
		stats := o + total - statAllocatedBytes*statSize
		out[i] = device{addr: o, limit: maxDeviceAllocator, stats: stats, mutex: stats - l.mutexSize}
		for _, other := range objects {
			if other > o {
				out[i].limit = min(out[i].limit, other-o)
			}
		}
	}
	return out
}
