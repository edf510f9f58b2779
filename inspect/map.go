// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// State is what a block is in.
type State uint8

const (
	// StateFree: cached by the allocator, not allocated.
	StateFree State = 0
	// StateAllocated is a block that the program holds.
	StateAllocated State = 1
	// StatePending is a block that the program has given back and that still waits for another stream's work.
	StatePending State = 2
	// StateChanging is no state of a block but a part of a segment whose blocks changed while they were read: see Allocator.MapNow.
	StateChanging State = 3
)

// String returns PyTorch's spelling (torch.cuda.memory_snapshot), which has none for StateChanging.
func (s State) String() string {
	switch s {
	case StateFree:
		return "inactive"
	case StateAllocated:
		return "active_allocated"
	case StatePending:
		return "active_pending_free"
	case StateChanging:
		return "changing"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Block is one tile of a segment.
type Block struct {
	Addr      uint64 // device address
	Size      uint64 // bytes
	Requested uint64 // bytes the program asked for; 0 for a free block
	Stream    uint64 // raw handle of the stream that the block belongs to; 0 is the default stream
	ID        uint64 // number of the allocation, by BFC; 0: a free block, or one of PyTorch's, which has none
	State     State
}

// Segment is memory that the allocator got from the driver at once; of an expandable segment, a contiguously mapped part.
type Segment struct {
	Addr   uint64 // device address
	Size   uint64 // bytes
	Stream uint64 // of its first block
	Pool   Pool
	// Expandable says that parts of the segment's address range are not mapped (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
	Expandable bool
	Blocks     []Block // all of it, without gaps, sorted by address
}

// DeviceMap is every segment and block of one device in one moment, or of one BFC allocator.
type DeviceMap struct {
	DeviceTotals
	Name     string    // of a BFC allocator, such as "GPU_0_bfc"; empty: it is PyTorch's
	Host     bool      // the memory is the host's, and Device means nothing
	Active   uint64    // bytes of allocated and pending blocks
	Time     uint64    // when it was read, CLOCK_BOOTTIME, nanoseconds
	Window   Window    // holds the moment
	Segments []Segment // sorted by address
	// Changing is what did not stand still. nil: nothing, the map is one of one moment and its blocks add up.
	Changing *Changing
}

// Map is the maps of all devices, by their number. Each was read in its own moment.
type Map struct {
	Devices []DeviceMap
}

// Window is a time in which allocator state was read: CLOCK_BOOTTIME, nanoseconds.
type Window struct {
	From, To uint64
	// Settled says that every change that was seen had been made, and reported to PyTorch's profiler, by To: the allocator
	// was seen unlocked, or busy with a later call. It is false when one call lasted too long to wait for its end.
	Settled bool
}

const (
	// mapTimeout is how long a device whose state changes is tried again.
	mapTimeout = 2 * time.Second
	// maxQuiet is how many attempts in a row may fail without a change: a thread may be held up, for a while, in the
	// middle of an allocation.
	maxQuiet = 20
	// maxBursts is how often the pages that change are copied in a row until nothing changed meanwhile.
	maxBursts = 32
)

// errQuiet marks an attempt during which nothing changed and that failed nevertheless.
var errQuiet = errors.New("nothing changed meanwhile")

// Map reads every segment and block. A map is given only when it is proved: its blocks add up to the allocator's own
// statistics, which did not change while it was read. The error wraps ErrChanged when the program did not leave a
// moment for that within two seconds for one device, and ErrUnknownLayout when the sums do not balance although nothing
// changed. It is the cause of ctx when that ended it.
func (a *Allocator) Map(ctx context.Context) (*Map, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	m := &Map{}
	for i := range devices {
		d, err := a.mapWithin(ctx, newPages(a.memory), devices[i], i, mapTimeout)
		if err != nil {
			return nil, fmt.Errorf("read the map of device %d: %w", i, err)
		}
		m.Devices = append(m.Devices, *d)
	}
	return m, nil
}

// mapWithin tries for some time.
func (a *Allocator) mapWithin(ctx context.Context, copied *pages, d device, i int, mapTimeout time.Duration) (*DeviceMap, error) {
	quiet := 0
	for end := time.Now().Add(mapTimeout); ; {
		m, err := a.attempt(ctx, copied, d, i)
		switch {
		case err == nil:
			return m, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errTooMuch):
			return nil, err
		case errors.Is(err, errQuiet):
			quiet++
		default:
			quiet = 0
		}
		if quiet >= maxQuiet && lockOf(a.memory, d.mutex) != lockHeld {
			return nil, fmt.Errorf("%w: %w", ErrUnknownLayout, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: %w", ErrChanged, err)
		}
		time.Sleep(time.Duration(min(quiet, maxQuiet)) * time.Millisecond)
	}
}

// attempt brings the pages that the attempts before needed to one moment, and puts the map together from them. When it
// needs further pages, nothing may have changed until it has them, either.
func (a *Allocator) attempt(ctx context.Context, copied *pages, d device, i int) (*DeviceMap, error) {
	m, s, err := a.burst(ctx, copied, d)
	if err != nil {
		return nil, err
	}
	if changed, err := copied.compareCold(); err != nil {
		return nil, err
	} else if changed > 0 {
		return nil, fmt.Errorf("%d of %d pages changed that had not before", changed, len(copied.index))
	}
	m.Window.To, m.Window.Settled = a.settle(ctx, d, s)
	copied.renew()
	segments, err := a.assemble(copied, d, i, s)
	if copied.misses > 0 {
		if after, statsErr := a.stats(ctx, d); statsErr != nil || *after != *s {
			if err != nil { // it gave up: find the rest of the pages that the next attempt needs
				_, _ = a.collect(ctx, copied, a.memory, d, i)
			}
			return nil, fmt.Errorf("statistics changed while %d pages were found", copied.misses)
		}
		m.Window.To, m.Window.Settled = a.settle(ctx, d, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errQuiet, err)
	}
	m.DeviceTotals, m.Active, m.Segments = s.totals(i), s.current(statActiveBytes, 0), segments
	return m, nil
}

// burst copies the pages that change until nothing changes meanwhile, and no call is under way, a few times. It returns a map
// that has the times only. A call can be under way for long, in the driver: then the state is tried as it is.
func (a *Allocator) burst(ctx context.Context, copied *pages, d device) (*DeviceMap, *stats, error) {
	m := &DeviceMap{Window: Window{From: bootTime()}}
	before, err := a.stats(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	for n := range maxBursts {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if err := copied.copyHot(); err != nil {
			return nil, nil, err
		}
		m.Time = bootTime()
		after, err := a.stats(ctx, d)
		if err != nil {
			return nil, nil, err
		}
		if *after == *before && (n == maxBursts-1 || lockOf(a.memory, d.mutex) != lockHeld) {
			return m, after, nil
		}
		m.Window.From, before = m.Time, after
	}
	return nil, nil, fmt.Errorf("statistics changed while %d pages were copied", len(copied.hot))
}

// assemble tries the shapes that a Block may have, until one is proved.
func (a *Allocator) assemble(copied *pages, d device, i int, s *stats) ([]Segment, error) {
	if s.current(statReservedBytes, 0) == 0 {
		return nil, nil
	}
	var first error
	for k, shape := range a.shapes {
		b := newStateReader(copied, i, d, shape)
		segments, err := b.prove(s)
		if err == nil {
			a.shapes, a.places = a.shapes[k:k+1], &b.places
			return segments, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// prove returns the segments of a state that balances.
func (b *stateReader) prove(s *stats) ([]Segment, error) {
	if err := b.read(); err != nil {
		return nil, err
	}
	if err := b.balance(s); err != nil {
		return nil, err
	}
	return b.segments()
}
