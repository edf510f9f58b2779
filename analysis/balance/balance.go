// SPDX-License-Identifier: Apache-2.0

// Package balance says where all device memory of a process is: what the driver counts against the caching allocator's memory,
// that of libraries and of the program's own calls, and what remains.
package balance

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Input is what New adds up: one process, at one moment as far as that can be had.
type Input struct {
	PID uint32
	// Torch has a row for every device that the allocator knows, also without memory. Nil with an empty TorchWhy: the process
	// has no allocator of that kind.
	Torch    []figures.TorchMemory
	TorchWhy string // why the allocator state is not known; then the events' totals are used
	// View is what was seen of the driver's calls; nil: nobody watched.
	View *view.View
	// Driver has a row for each device that the program sees, or on which the driver lists it.
	Driver    []figures.DriverUse
	DriverWhy string // why Driver is empty, or not all it could be
	// Whole says that the process had no device memory when the watch began.
	Whole bool
	// Moved says that the figures changed while they were read: they are not those of one moment.
	Moved bool
}

// Torch is the caching allocator's memory on one device, in bytes. Each may be event.Unknown; without an allocator all
// are 0. When all are known, Reserved == Allocated + Pending + InactiveSplit + Free.
type Torch struct {
	Reserved      uint64 // segments
	Allocated     uint64 // blocks that the program holds
	Requested     uint64 // of Allocated, what the program asked for
	Pending       uint64 // blocks given back that wait for another stream's work; event.Unknown: they are in InactiveSplit
	InactiveSplit uint64 // free blocks of segments that are in use
	Free          uint64 // segments that are free as a whole
}

// Rounding is the bytes that the allocator added to what was asked for; event.Unknown.
func (t *Torch) Rounding() uint64 { return figures.Sub(t.Allocated, t.Requested) }

// Cached is what no block of the program is in: Pending, InactiveSplit and Free, also when they are not known one by one;
// event.Unknown.
func (t *Torch) Cached() uint64 { return figures.Sub(t.Reserved, t.Allocated) }

// OwnerUse is the device memory that one library, or line of the program, holds beside the caching allocator.
type OwnerUse struct {
	stacks.Owner
	heap.Count
}

// Device says where the memory is that a process uses on one device. When everything is known,
//
//	Used == Torch.Reserved - Asleep + Other.Bytes + Remainder
type Device struct {
	PID    uint32
	Device event.Device // Index -1: of memory and figures of which it is not known on which device they are

	Used   uint64 // by the process, as the driver counts, bytes; event.Unknown
	Why    string // why Used is not known; empty when it is
	Driver figures.DriverUse

	Torch Torch
	// Asleep is the bytes of Torch.Reserved that have no memory: an allocator below PyTorch's released it and kept the addresses.
	Asleep uint64
	// Allocator is whose memory Torch is.
	Allocator allocator.Allocator
	TorchWhy  string // why something in Torch is not known

	Owners []OwnerUse // largest first
	Other  heap.Count // all of Owners
	// Managed is what of Other is managed memory, bytes. The driver counts only those of its pages that are on the device.
	Managed uint64

	Watched bool // somebody watched: Owners are known since the watch began
	Whole   bool // since before the process had device memory
	Pools   bool // stream-ordered pools are in use: what is given back to one stays with the driver

	Segments heap.Count // the caching allocator's memory, by the driver's calls that were seen, and the allocator state
	// SegmentBytes and Total are the caching allocator's memory at its last report: by the driver's calls, and as it said
	// itself. Bytes; event.Unknown.
	SegmentBytes, Total uint64
	// Doubtful is what of Other may be freed: a context was destroyed, and whether this was in it is not known. Bytes.
	Doubtful uint64
}

// Remainder is what the driver counts beyond what is explained: the context, what the driver keeps for itself, and what was
// obtained before the watch began. It can be negative. known is false when a term is not known.
func (d *Device) Remainder() (bytes int64, known bool) {
	if d.Used == event.Unknown || d.Torch.Reserved == event.Unknown {
		return 0, false
	}
	return int64(d.Used - d.Torch.Reserved + d.Asleep - d.Other.Bytes), true
}

// SegmentGap is the caching allocator's memory by its own last report less that by the driver's calls; 0 when they agree.
// known is false when one of them is not known.
func (d *Device) SegmentGap() (bytes int64, known bool) {
	if d.SegmentBytes == event.Unknown || d.Total == event.Unknown {
		return 0, false
	}
	return int64(d.Total - d.SegmentBytes), true
}

// Process is where the memory of one process is.
type Process struct {
	PID     uint32
	Devices []Device // by their number; last the one that stands for what is on no known device
	// Unplaced are figures of the driver that belong to no known device.
	Unplaced []figures.DriverUse

	Host    heap.Count // pinned host memory, which is no device memory
	Shared  heap.Count // opened here, obtained by another process or API; bytes as far as they are known
	Virtual heap.Count // addresses without memory of their own

	DriverWhy string // why the driver's figures, or the devices they belong to, are not known; empty: they are
	Moved     bool   // the figures are not those of one moment
}

// Elsewhere is the device memory whose device is not known, bytes. Each device's remainder may have a part of it.
func (b *Process) Elsewhere() uint64 {
	for i := range b.Devices {
		if d := &b.Devices[i]; d.Device.Index < 0 && len(b.Devices) > 1 {
			return d.Other.Bytes
		}
	}
	return 0
}

// New adds up a process's memory.
func New(in *Input) *Process {
	b := &balancer{in: in, devices: map[event.Device]*Device{}, out: &Process{PID: in.PID, DriverWhy: in.DriverWhy, Moved: in.Moved}}
	b.addTorch()
	if in.View != nil {
		b.addAccounts()
		b.addAsleep()
		b.only = b.onlyDevice()
		b.addSites()
		b.addDoubts()
	}
	b.addDriver()
	for _, d := range b.devices {
		sorts.Func(d.Owners, func(x, y OwnerUse) int {
			return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name), cmp.Compare(x.File, y.File))
		})
		b.out.Devices = append(b.out.Devices, *d)
	}
	sorts.Func(b.out.Devices, func(x, y Device) int {
		// As unsigned numbers: -1 comes last.
		return cmp.Or(cmp.Compare(x.Device.Type, y.Device.Type), cmp.Compare(uint8(x.Device.Index), uint8(y.Device.Index)))
	})
	return b.out
}

type balancer struct {
	in      *Input
	devices map[event.Device]*Device
	only    *event.Device // the one that the process uses; nil: several, or not known
	out     *Process
}

func (b *balancer) device(d event.Device) *Device {
	if b.devices[d] == nil {
		b.devices[d] = &Device{
			PID: b.in.PID, Device: d, Used: event.Unknown, Why: cmp.Or(b.in.DriverWhy, "the driver shows no such device"),
			Driver: figures.DriverUse{Device: -1, Used: figures.Unknown, Total: figures.Unknown, All: figures.Unknown},
			Torch:  b.noTorch(d), TorchWhy: b.in.TorchWhy, SegmentBytes: event.Unknown, Total: event.Unknown,
			Watched: b.in.View != nil, Whole: b.in.Whole,
		}
	}
	return b.devices[d]
}

// noTorch is the allocator's memory on a device of which nothing is known: none, unless its state cannot be read. It
// always knows its device.
func (b *balancer) noTorch(d event.Device) Torch {
	if b.in.TorchWhy == "" || d.Index < 0 {
		return Torch{}
	}
	u := event.Unknown
	return Torch{u, u, u, u, u, u}
}

// numbered is the device that the driver and the allocator know by a number: CUDA's, or a Mac's where the process uses that.
func (b *balancer) numbered(ordinal int) event.Device {
	d := event.Device{Type: event.DeviceCUDA, Index: int8(ordinal)}
	if b.in.View == nil {
		return d
	}
	for _, a := range b.in.View.Snapshot.Accounts {
		if a.PID == b.in.PID && a.Device.Type.MPS() {
			d.Type = a.Device.Type
		}
	}
	return d
}

func (b *balancer) addTorch() {
	for i := range b.in.Torch {
		t := &b.in.Torch[i]
		if t.Reserved == 0 {
			continue
		}
		d := b.device(b.numbered(t.Device))
		if t.Allocator != allocator.Torch && d.Torch.Reserved > 0 {
			continue // beside PyTorch's, it is memory that is not PyTorch's
		}
		d.Allocator = t.Allocator
		d.Torch = Torch{
			uint64(t.Reserved), uint64(t.Allocated), uint64(t.Requested), uint64(t.Pending), uint64(t.InactiveSplit), uint64(t.Free),
		}
	}
}

// addAccounts takes from the events what is not in the allocator state, and the totals for comparison.
func (b *balancer) addAccounts() {
	accounts := b.in.View.Snapshot.Accounts
	for i := range accounts {
		a := &accounts[i]
		if a.PID != b.in.PID {
			continue
		}
		if a.Device.Allocator().Sampled() || a.Device.Physical().Type == event.DeviceCPU {
			continue // estimates, of memory that may be on no device; memory of the host
		}
		known := b.hasState(a.Device)
		d := b.device(a.Device.Physical())
		if other := a.Device.Allocator(); other != allocator.Torch {
			if d.Torch == b.noTorch(d.Device) { // beside PyTorch's, its segments are memory that is not PyTorch's
				d.Torch, d.Allocator, d.TorchWhy = otherMemory(a)
			}
			continue
		}
		d.SegmentBytes, d.Total = a.SegmentBytes, a.Reserved
		if !known {
			u := event.Unknown
			d.Torch = Torch{a.Reserved, a.Allocated, u, u, u, u}
			if a.Live.RequestedObjects == a.Live.Objects && a.Before == 0 && a.Lost == 0 {
				d.Torch.Requested = a.Live.Requested
			}
		}
	}
}

// addAsleep takes from the events what of PyTorch's segments has no memory, which PyTorch does not know.
func (b *balancer) addAsleep() {
	for _, s := range b.in.View.Snapshot.Asleep {
		if s.PID == b.in.PID {
			b.device(s.Device.Physical()).Asleep += s.Segments
		}
	}
}

// otherMemory returns the memory of an allocator that reports no totals, and why something in it is not known.
func otherMemory(a *heap.Account) (Torch, allocator.Allocator, string) {
	u, other := event.Unknown, a.Device.Allocator()
	switch {
	case a.Allocated == u:
		return Torch{u, u, u, u, u, u}, other, other.String() + " does not report what it had before the attach"
	case a.Reserved == u:
		return Torch{u, a.Allocated, u, u, u, u}, other, "the memory that " + other.String() + " divides is not known"
	}
	return Torch{a.Reserved, a.Allocated, u, u, u, u}, other, "its free parts are not known one by one"
}

func (b *balancer) hasState(d event.Device) bool {
	return b.in.TorchWhy == "" && slices.ContainsFunc(b.in.Torch, func(t figures.TorchMemory) bool {
		return b.numbered(t.Device) == d && t.Allocator == allocator.Torch
	})
}

// addSites adds the memory of the driver's layers.
func (b *balancer) addSites() {
	for i := range b.in.View.Sites {
		s := &b.in.View.Sites[i]
		if s.PID != b.in.PID {
			continue
		}
		switch s.Layer {
		case event.LayerDevice:
			if where := b.place(s.Device); s.Inuse.Objects > 0 || b.devices[where] != nil {
				b.device(where).add(s)
			}
		case event.LayerHost:
			b.out.Host = b.out.Host.Plus(s.Inuse)
		case event.LayerShared:
			b.out.Shared = b.out.Shared.Plus(s.Inuse)
		case event.LayerVirtual:
			b.out.Virtual = b.out.Virtual.Plus(s.Inuse)
		}
	}
	for where, d := range b.devices {
		if where.Index < 0 {
			d.Why = "which device it is on is not known"
		}
	}
}

// addDoubts adds up how much of the live set may be freed.
func (b *balancer) addDoubts() {
	for i := range b.in.View.Snapshot.Drivers {
		a := &b.in.View.Snapshot.Drivers[i]
		if d := b.devices[b.place(a.Device)]; d != nil && a.PID == b.in.PID && a.Layer == event.LayerDevice {
			d.Doubtful += a.Doubtful.Bytes
		}
	}
}

// place is where memory is counted: on its device, or where that is not known on the only one there is.
func (b *balancer) place(d event.Device) event.Device {
	if d.Index < 0 && b.only != nil {
		return *b.only
	}
	return d
}

// onlyDevice is the one device that the process uses, or can use; nil when there are several, or it is not known.
func (b *balancer) onlyDevice() *event.Device {
	used := map[event.Device]bool{}
	for d := range b.devices {
		used[d] = true
	}
	listed, unnamed := 0, 0
	for i := range b.in.Driver {
		switch u := &b.in.Driver[i]; {
		case u.Used == figures.Unknown:
		case u.Device < 0:
			unnamed++
		default:
			listed++
			used[b.numbered(u.Device)] = true
		}
	}
	for i := range b.in.View.Sites {
		if s := &b.in.View.Sites[i]; s.PID == b.in.PID && s.Layer == event.LayerDevice && s.Device.Index >= 0 && s.Inuse.Objects > 0 {
			used[s.Device] = true
		}
	}
	if len(used) != 1 || unnamed > 1 || listed+unnamed == 0 && !b.single() {
		return nil
	}
	for d := range used {
		return &d
	}
	return nil
}

// single says whether the program sees one device only.
func (b *balancer) single() bool { return len(b.in.Torch) == 1 || len(b.in.Driver) == 1 }

// add adds the device memory of one site.
func (d *Device) add(s *view.Site) {
	d.Pools = d.Pools || strings.Contains(s.Call, "Async")
	switch {
	case s.Inuse.Objects == 0:
	case !s.Segment:
		d.addOwner(s)
	default:
		d.Segments = d.Segments.Plus(s.Inuse)
	}
}

func (d *Device) addOwner(s *view.Site) {
	d.Other = d.Other.Plus(s.Inuse)
	if strings.Contains(s.Call, "Managed") {
		d.Managed += s.Inuse.Bytes
	}
	owner := stacks.OwnerOf(s.Stack, s.Name)
	for i := range d.Owners {
		if d.Owners[i].Owner == owner {
			d.Owners[i].Count = d.Owners[i].Count.Plus(s.Inuse)
			return
		}
	}
	d.Owners = append(d.Owners, OwnerUse{owner, s.Inuse})
}

// addDriver adds the driver's figures to the devices that they belong to.
func (b *balancer) addDriver() {
	var unnamed []figures.DriverUse
	for i := range b.in.Driver {
		switch u := &b.in.Driver[i]; {
		case u.Device < 0:
			unnamed = append(unnamed, *u)
		case u.Used != figures.Unknown || b.devices[b.numbered(u.Device)] != nil:
			b.device(b.numbered(u.Device)).setDriver(u)
		}
	}
	where := b.numbered(-1)
	for d := range b.devices {
		where = d
	}
	switch {
	case len(unnamed) == 1 && len(b.devices) == 0, len(unnamed) == 1 && len(b.devices) == 1 && b.devices[where].Used == event.Unknown:
		b.device(where).setDriver(&unnamed[0])
	default:
		b.out.Unplaced = unnamed
	}
}

func (d *Device) setDriver(u *figures.DriverUse) { d.Driver, d.Used, d.Why = *u, uint64(u.Used), u.Why }
