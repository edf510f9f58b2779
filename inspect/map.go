//go:build linux

package inspect

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// State is what a block is in.
type State uint8

const (
	// StateFree is a hole: cached by the allocator, handed out to nobody.
	StateFree State = 0
	// StateAllocated is a block that the program holds.
	StateAllocated State = 1
	// StatePending is a block that the program has given back and that still waits for another stream's work.
	StatePending State = 2
)

// String gives PyTorch's spelling (torch.cuda.memory_snapshot).
func (s State) String() string {
	switch s {
	case StateFree:
		return "inactive"
	case StateAllocated:
		return "active_allocated"
	case StatePending:
		return "active_pending_free"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Block is one tile of a segment.
type Block struct {
	Addr      uint64 // device address
	Size      uint64 // bytes
	Requested uint64 // bytes the program asked for; 0 for a free block
	Stream    uint64 // raw handle of the stream that the block belongs to; 0 is the default stream
	State     State
}

// Segment is memory that the allocator got from the driver at once; of an expandable segment, a part that is mapped without
// a hole.
type Segment struct {
	Addr   uint64 // device address
	Size   uint64 // bytes
	Stream uint64 // of its first block
	Pool   Pool
	// Expandable says that parts of the segment's address range are not mapped
	// (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
	Expandable bool
	Blocks     []Block // all of it, without gaps, sorted by address
}

// DeviceMap is every segment and block of one device in one moment.
type DeviceMap struct {
	DeviceTotals
	Active   uint64    // bytes of allocated and pending blocks
	Time     uint64    // when it was read, CLOCK_BOOTTIME, nanoseconds
	Segments []Segment // sorted by address
}

// Map is the maps of all devices, by their number. Each was read in its own moment.
type Map struct {
	Devices []DeviceMap
}

// patience is how long a device whose books change is tried again.
const patience = 2 * time.Second

// Map reads every segment and block. A map is given only when it is proved: its blocks add up to the allocator's own
// statistics, which did not change while it was read. The error wraps ErrChanged when the program did not leave a
// moment for that within two seconds for one device, and ErrUnknownLayout when the books do not balance although nothing
// changed.
func (a *Allocator) Map() (*Map, error) {
	devices, err := a.devices()
	if err != nil {
		return nil, err
	}
	m := &Map{}
	for i := range devices {
		d, err := a.mapDevice(devices, i)
		if err != nil {
			return nil, fmt.Errorf("read the map of device %d: %w", i, err)
		}
		m.Devices = append(m.Devices, *d)
	}
	return m, nil
}

// errQuiet marks an attempt during which nothing changed and that failed nevertheless.
var errQuiet = errors.New("nothing changed meanwhile")

// maxQuiet is how many attempts in a row may fail without a change: a thread may be held up, for a while, in the middle of
// an allocation.
const maxQuiet = 20

func (a *Allocator) mapDevice(devices []device, i int) (*DeviceMap, error) {
	copied := newPages(a.memory)
	quiet := 0
	for end := time.Now().Add(patience); ; {
		d, err := a.attempt(copied, devices, i)
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, errTooMuch):
			return nil, err
		case errors.Is(err, errQuiet):
			quiet++
		default:
			quiet = 0
		}
		if quiet >= maxQuiet {
			return nil, fmt.Errorf("%w: %w", ErrUnknownLayout, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: %w", ErrChanged, err)
		}
		time.Sleep(time.Duration(quiet) * time.Millisecond)
	}
}

// attempt copies the pages that the attempt before needed, and puts the map together from the copy. When it needs further
// pages, what it took them from must not have changed either.
func (a *Allocator) attempt(copied *pages, devices []device, i int) (*DeviceMap, error) {
	before, err := a.stats(devices[i])
	if err != nil {
		return nil, err
	}
	if err := copied.refresh(); err != nil {
		return nil, err
	}
	after, err := a.stats(devices[i])
	if err != nil {
		return nil, err
	}
	now := bootTime()
	if *after != *before {
		return nil, fmt.Errorf("statistics changed while %d pages were copied", len(copied.index))
	}
	segments, err := a.assemble(copied, devices, i, before)
	if copied.misses > 0 {
		if after, statsErr := a.stats(devices[i]); statsErr != nil || *after != *before {
			return nil, fmt.Errorf("statistics changed while %d pages were found", copied.misses)
		}
	}
	if err != nil {
		copied.drop()
		return nil, fmt.Errorf("%w: %w", errQuiet, err)
	}
	return &DeviceMap{DeviceTotals: before.totals(i), Active: before.current(statActiveBytes, 0), Time: now, Segments: segments}, nil
}

// assemble tries the places where a Block's size may be, until one is proved.
func (a *Allocator) assemble(copied *pages, devices []device, i int, s *stats) ([]Segment, error) {
	if s.current(statReservedBytes, 0) == 0 {
		return nil, nil
	}
	var first error
	for _, size := range a.sizes {
		b := newBooks(copied, i, devices[i].addr, devices[i].limit, size)
		segments, err := b.prove(s)
		if err == nil {
			a.sizes = []uint64{size}
			return segments, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// prove gives the segments of books that balance.
func (b *books) prove(s *stats) ([]Segment, error) {
	if err := b.read(); err != nil {
		return nil, err
	}
	if err := b.balance(s); err != nil {
		return nil, err
	}
	return b.segments()
}

func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
