// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const (
	unknown = event.Unknown
	pid     = 7
)

var (
	anyDevice = event.Device{Type: event.DeviceCUDA, Index: -1}
	cuda1     = event.Device{Type: event.DeviceCUDA, Index: 1}
)

// on moves a site to another device.
func on(d event.Device, s heap.Site) heap.Site {
	s.Device = d
	return s
}

// segment is memory of the caching allocator.
func segment(d event.Device, bytes uint64) heap.Site {
	s := on(d, site(event.LayerDevice, pid, 9, 1, bytes))
	s.Segment = true
	return s
}

// called names the call of a site.
func called(call string, s heap.Site) heap.Site {
	s.Call = call
	return s
}

var owned = map[event.StackID]*event.Stack{
	1: eventtest.Stack("libcuda.so.1!cuMemCreate libnccl.so.2!ncclCommInitRank"),
	2: eventtest.Stack("libcuda.so.1!cuMemAlloc_v2 libcublas.so.13!cublasCreate_v2 " + eventtest.Own),
	3: eventtest.Stack("libcuda.so.1!cuMemAlloc_v2 libcublas.so.13!other " + eventtest.Own),
}

func watched(sites ...heap.Site) *view.View {
	return view.New(&heap.Snapshot{Sites: sites}, func(id event.StackID) *event.Stack { return owned[id] }, nil)
}

// torch is the allocator state of a device: 60 allocated, of them 50 requested, 5 pending, 15 in inactive splits, 20 free.
func torch(device int) figures.TorchMemory {
	return figures.TorchMemory{Device: device, Reserved: 100, Allocated: 60, Requested: 50, Pending: 5, InactiveSplit: 15, Free: 20}
}

var parts = Torch{Reserved: 100, Allocated: 60, Requested: 50, Pending: 5, InactiveSplit: 15, Free: 20}

func driverSays(device int, used uint64) figures.DriverUse {
	u := figures.DriverUse{Device: device, Used: figures.Bytes(used), Name: "H200", Total: 1 << 30, All: figures.Bytes(used)}
	if used == unknown {
		u.Why, u.All = "not listed", figures.Unknown
	}
	return u
}

func TestBalance(t *testing.T) {
	b := New(&Input{
		PID: pid, Torch: []figures.TorchMemory{torch(0), {Device: 1}}, Whole: true,
		View: watched(
			segment(cuda(0), 100),
			site(event.LayerDevice, pid, 2, 1, 16),
			site(event.LayerDevice, pid, 1, 2, 40),
			site(event.LayerDevice, pid, 3, 3, 8),
			site(event.LayerDevice, 8, 1, 1, 1<<20),
			site(event.LayerAllocator, pid, 2, 5, 60),
			site(event.LayerHost, pid, 2, 1, 1<<20),
			site(event.LayerShared, pid, 2, 1, 2<<20),
			site(event.LayerVirtual, pid, 2, 1, 3<<20),
			site(event.LayerHolder, pid, 2, 1, 4<<20),
		),
		Driver: []figures.DriverUse{driverSays(0, 1000), driverSays(1, unknown)},
	})
	require.Len(t, b.Devices, 1)
	d := b.Devices[0]
	require.Equal(t, cuda(0), d.Device)
	require.Equal(t, parts, d.Torch)
	require.EqualValues(t, 10, d.Torch.Rounding())
	require.EqualValues(t, 40, d.Torch.Cached())
	var owners []string
	for _, o := range d.Owners {
		owners = append(owners, fmt.Sprintf("%s %d in %d", o.Name, o.Bytes, o.Objects))
	}
	require.Equal(t, []string{"NCCL 40 in 2", "cuBLAS 24 in 4"}, owners)
	requireRemainder(t, 1000-100-64, &d)
	require.True(t, d.Watched && d.Whole)
	require.False(t, d.Pools)
	require.EqualValues(t, 1<<20, b.Host.Bytes)
	require.EqualValues(t, 2<<20, b.Shared.Bytes)
	require.EqualValues(t, 3<<20, b.Virtual.Bytes)
	require.Zero(t, b.Elsewhere())
}

func requireRemainder(t *testing.T, want int64, d *Device) {
	t.Helper()
	got, known := d.Remainder()
	require.True(t, known)
	require.Equal(t, want, got)
}

func requireUnknown(t *testing.T, why string, d *Device) {
	t.Helper()
	_, known := d.Remainder()
	require.False(t, known)
	require.Equal(t, unknown, d.Used)
	require.Equal(t, why, d.Why)
}

// TestBalanceNegative: the remainder is shown as it is.
func TestBalanceNegative(t *testing.T) {
	b := New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0)}, Driver: []figures.DriverUse{driverSays(0, 70)}})
	requireRemainder(t, -30, &b.Devices[0])
	require.False(t, b.Devices[0].Watched)
}

func TestBalanceWithoutDriver(t *testing.T) {
	b := New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0)}, DriverWhy: "NVML is not there"})
	requireUnknown(t, "NVML is not there", &b.Devices[0])
	require.Equal(t, "NVML is not there", b.DriverWhy)
	require.Equal(t, parts, b.Devices[0].Torch)

	b = New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0)}, Driver: []figures.DriverUse{driverSays(0, unknown)}})
	requireUnknown(t, "not listed", &b.Devices[0])

	b = New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0), torch(1)}, Driver: []figures.DriverUse{driverSays(1, 500)}})
	requireUnknown(t, "the driver shows no such device", &b.Devices[0])
	requireRemainder(t, 400, &b.Devices[1])
}

// TestBalanceByTotals: where the allocator state cannot be read, the totals of its reports are used.
func TestBalanceByTotals(t *testing.T) {
	for _, tt := range []struct {
		name    string
		account heap.Account
		why     string // of the allocator state
		want    Torch
	}{
		{"all live blocks known", heap.Account{Allocated: 60, Reserved: 100, Live: heap.Count{Objects: 3, RequestedObjects: 3, Requested: 50}},
			"ended",
			Torch{100, 60, 50, unknown, unknown, unknown}},
		{"some from before", heap.Account{Allocated: 60, Reserved: 100, Before: 10,
			Live: heap.Count{Objects: 3, RequestedObjects: 3, Requested: 50}}, "ended",
			Torch{100, 60, unknown, unknown, unknown, unknown}},
		{"some sizes unknown", heap.Account{Allocated: 60, Reserved: 100, Live: heap.Count{Objects: 3, RequestedObjects: 2, Requested: 50}},
			"ended",
			Torch{100, 60, unknown, unknown, unknown, unknown}},
		{"no totals", heap.Account{Allocated: unknown, Reserved: unknown, Live: heap.Count{Objects: 3}}, "ended",
			Torch{unknown, unknown, unknown, unknown, unknown, unknown}},
		{"an allocator without totals", heap.Account{Allocated: 60, Reserved: 100, Before: 1}, "",
			Torch{100, 60, unknown, unknown, unknown, unknown}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.account.PID, tt.account.Device = pid, cuda(0)
			v := watched()
			v.Snapshot.Accounts = []heap.Account{tt.account, {PID: 8, Device: cuda(0), Reserved: 1 << 30}}
			b := New(&Input{PID: pid, TorchWhy: tt.why, View: v, Driver: []figures.DriverUse{driverSays(0, 130)}})
			require.Len(t, b.Devices, 1)
			require.Equal(t, tt.want, b.Devices[0].Torch)
			if tt.want.Reserved == unknown {
				_, known := b.Devices[0].Remainder()
				require.False(t, known)
				return
			}
			requireRemainder(t, 30, &b.Devices[0])
		})
	}
	b := New(&Input{PID: pid, TorchWhy: "layout", View: watched(site(event.LayerDevice, pid, 1, 1, 5)),
		Driver: []figures.DriverUse{driverSays(0, 130)}})
	_, known := b.Devices[0].Remainder()
	require.False(t, known, "the caching allocator may have any part of it")
}

// TestBalancePlaces: memory without a device belongs to the only one, if there is only one.
func TestBalancePlaces(t *testing.T) {
	raw := on(anyDevice, site(event.LayerDevice, pid, 1, 1, 40))
	two := []figures.TorchMemory{torch(0), {Device: 1}}
	for _, tt := range []struct {
		name      string
		in        Input
		want      []event.Device // that have entries
		elsewhere uint64
	}{
		{"by the driver", Input{Torch: two, Driver: []figures.DriverUse{driverSays(0, 1000), driverSays(1, unknown)}}, []event.Device{cuda(0)},
			0},
		{"the driver sees another", Input{Torch: two, Driver: []figures.DriverUse{driverSays(0, 1000), driverSays(1, 300)}},
			[]event.Device{cuda(0), cuda1, anyDevice}, 40},
		{"there is only one", Input{Torch: two[:1], DriverWhy: "blind"}, []event.Device{cuda(0)}, 0},
		{"there may be another", Input{Torch: two, DriverWhy: "blind"}, []event.Device{cuda(0), anyDevice}, 40},
		{"torch has two", Input{Torch: []figures.TorchMemory{torch(0), torch(1)}, Driver: []figures.DriverUse{driverSays(0, 1000)}},
			[]event.Device{cuda(0), cuda1, anyDevice}, 40},
		{"no torch, one device", Input{Driver: []figures.DriverUse{driverSays(1, 1000)}}, []event.Device{cuda1}, 0},
		{"no torch, the driver's device has no number", Input{Driver: []figures.DriverUse{driverSays(-1, 1000)}}, []event.Device{anyDevice}, 0},
		{"torch's device is the driver's", Input{Torch: two, Driver: []figures.DriverUse{driverSays(-1, 1000)}}, []event.Device{cuda(0)}, 0},
		{"nothing but the memory", Input{DriverWhy: "blind"}, []event.Device{anyDevice}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.PID, tt.in.View = pid, watched(raw)
			b := New(&tt.in)
			var got []event.Device
			var other uint64
			for i := range b.Devices {
				got = append(got, b.Devices[i].Device)
				other += b.Devices[i].Other.Bytes
			}
			require.Equal(t, tt.want, got)
			require.EqualValues(t, 40, other)
			require.Equal(t, tt.elsewhere, b.Elsewhere())
			require.Empty(t, b.Unplaced)
		})
	}
}

// TestBalanceUnplaced: figures that belong nowhere are not lost.
func TestBalanceUnplaced(t *testing.T) {
	uses := []figures.DriverUse{driverSays(-1, 1000), driverSays(-1, 500)}
	b := New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0), torch(1)}, Driver: uses, DriverWhy: "order"})
	require.Equal(t, uses, b.Unplaced)
	for i := range b.Devices {
		requireUnknown(t, "order", &b.Devices[i])
	}
	b = New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0), torch(1)}, Driver: uses[:1], DriverWhy: "order"})
	require.Equal(t, uses[:1], b.Unplaced)
}

// TestBalanceOther: an allocator without totals has what was read of it, and host memory is on no device.
func TestBalanceOther(t *testing.T) {
	v := watched()
	gpu, host := event.Device{Type: event.DeviceCUDA.Of(allocator.BFC)}, event.Device{Type: event.DeviceCPU.Of(allocator.BFC)}
	for _, tt := range []struct {
		allocated, reserved uint64
		want                Torch
		why                 string
	}{
		{unknown, unknown, Torch{unknown, unknown, unknown, unknown, unknown, unknown}, "BFC does not report what it had before the attach"},
		{40, unknown, Torch{unknown, 40, unknown, unknown, unknown, unknown}, "the memory that BFC divides is not known"},
		{40, 100, Torch{100, 40, unknown, unknown, unknown, unknown}, "its free parts are not known one by one"},
	} {
		v.Snapshot.Accounts = []heap.Account{
			{PID: pid, Device: gpu, Allocated: tt.allocated, Reserved: tt.reserved}, {PID: pid, Device: host, Allocated: 9},
		}
		b := New(&Input{PID: pid, View: v, Driver: []figures.DriverUse{driverSays(0, 1000)}})
		require.Len(t, b.Devices, 1)
		d := &b.Devices[0]
		require.Equal(t, tt.want, d.Torch)
		require.Equal(t, []any{allocator.BFC, tt.why}, []any{d.Allocator, d.TorchWhy})
		rest, known := d.Remainder()
		require.Equal(t, []any{known, known}, []any{tt.reserved != unknown, rest == 900})
	}
}

// TestBalanceRegions: regions of BFC that were read divide its memory; beside PyTorch's, they are memory that is not PyTorch's.
func TestBalanceRegions(t *testing.T) {
	regions := torch(0)
	regions.Allocator = allocator.BFC
	v := watched()
	gpu := event.Device{Type: event.DeviceCUDA.Of(allocator.BFC)}
	v.Snapshot.Accounts = []heap.Account{{PID: pid, Device: gpu, Allocated: 60, Reserved: 100}}
	for _, view := range []*view.View{nil, v} {
		b := New(&Input{PID: pid, View: view, Torch: []figures.TorchMemory{regions}, Driver: []figures.DriverUse{driverSays(0, 1000)}})
		require.Len(t, b.Devices, 1)
		d := &b.Devices[0]
		require.Equal(t, []any{allocator.BFC, Torch{100, 60, 50, 5, 15, 20}, ""}, []any{d.Allocator, d.Torch, d.TorchWhy})
	}
	b := New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0), regions}})
	require.Equal(t, allocator.Torch, b.Devices[0].Allocator)
	require.EqualValues(t, 100, b.Devices[0].Torch.Reserved)
}

func TestBalanceNotes(t *testing.T) {
	v := watched(
		called("cudaMallocManaged", site(event.LayerDevice, pid, 1, 1, 40)),
		called("cuMemAllocAsync", heap.Site{Layer: event.LayerDevice, PID: pid, Device: cuda(0), Alloc: heap.Count{Objects: 3}}),
		segment(cuda(0), 90),
	)
	v.Snapshot.Accounts = []heap.Account{{PID: pid, Device: cuda(0), Reserved: 100, SegmentBytes: 90}}
	v.Snapshot.Drivers = []heap.DriverAccount{
		{PID: pid, Layer: event.LayerDevice, Device: anyDevice, Doubtful: heap.Count{Bytes: 3}},
		{PID: pid, Layer: event.LayerDevice, Device: cuda(0), Doubtful: heap.Count{Bytes: 4}},
		{PID: pid, Layer: event.LayerHost, Device: cuda(0), Doubtful: heap.Count{Bytes: 8}},
		{PID: 8, Layer: event.LayerDevice, Device: cuda(0), Doubtful: heap.Count{Bytes: 16}},
	}
	b := New(&Input{PID: pid, Torch: []figures.TorchMemory{torch(0)}, View: v})
	d := b.Devices[0]
	require.EqualValues(t, 40, d.Managed)
	require.EqualValues(t, 40, d.Other.Bytes)
	require.True(t, d.Pools, "also when nothing of them is in use")
	require.EqualValues(t, 7, d.Doubtful)
	require.EqualValues(t, 90, d.Segments.Bytes)
	gap, known := d.SegmentGap()
	require.True(t, known)
	require.EqualValues(t, 10, gap)
	v.Snapshot.Accounts[0].SegmentBytes = unknown
	b = New(&Input{PID: pid, View: v})
	_, known = b.Devices[0].SegmentGap()
	require.False(t, known)
}

// TestBalanceProperty: whatever is put in, each device adds up, and no byte is lost or counted twice.
func TestBalanceProperty(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	layers := []event.Layer{event.LayerAllocator, event.LayerDevice, event.LayerDevice, event.LayerDevice, event.LayerHost, event.LayerShared,
		event.LayerVirtual}
	for range 3000 {
		in := Input{PID: pid}
		var sites []heap.Site
		want := map[event.Layer]uint64{}
		for range random.IntN(8) {
			d := event.Device{Type: event.DeviceCUDA, Index: int8(random.IntN(4) - 1)}
			s := on(d, site(layers[random.IntN(len(layers))], uint32(pid+random.IntN(2)), event.StackID(random.IntN(5)), 1, random.Uint64N(1000)))
			s.Segment = s.Layer == event.LayerDevice && random.IntN(3) == 0
			if s.PID == pid && !s.Segment {
				want[s.Layer] += s.Inuse.Bytes
			}
			sites = append(sites, s)
		}
		in.View = watched(sites...)
		for i := range random.IntN(4) {
			in.Torch = append(in.Torch, []figures.TorchMemory{torch(i), {Device: i}}[random.IntN(2)])
		}
		var known int
		for i := range random.IntN(4) {
			u := driverSays([]int{i, i, i, -1}[random.IntN(4)], []uint64{random.Uint64N(5000), unknown}[random.IntN(2)])
			if u.Used != figures.Unknown {
				known++
			}
			in.Driver = append(in.Driver, u)
		}
		b := New(&in)
		got := map[event.Layer]uint64{event.LayerHost: b.Host.Bytes, event.LayerShared: b.Shared.Bytes, event.LayerVirtual: b.Virtual.Bytes}
		for i := range b.Devices {
			d := &b.Devices[i]
			got[event.LayerDevice] += d.Other.Bytes
			var owners uint64
			for _, o := range d.Owners {
				owners += o.Bytes
			}
			require.Equal(t, d.Other.Bytes, owners)
			if rest, ok := d.Remainder(); ok {
				require.EqualValues(t, d.Used, int64(d.Torch.Reserved+d.Other.Bytes)+rest)
			}
			if d.Used != unknown {
				known--
			}
		}
		for i := range b.Unplaced {
			if b.Unplaced[i].Used != figures.Unknown {
				known--
			}
		}
		for _, l := range layers[1:] {
			require.Equal(t, want[l], got[l], "%s of %+v", l, in)
		}
		require.Zero(t, known, "figures of the driver: %+v", in)
	}
}

// site is live memory of which as much again was freed already.
func site(layer event.Layer, pid uint32, stack event.StackID, objects, bytes uint64) heap.Site {
	return heap.Site{
		Layer: layer, Device: cuda(0), PID: pid, Stack: stack,
		Alloc: heap.Count{Objects: 2 * objects, Bytes: 2 * bytes}, Inuse: heap.Count{Objects: objects, Bytes: bytes},
	}
}

// TestSegmentGap: two figures that are both known have a difference.
func TestSegmentGap(t *testing.T) {
	for _, row := range []struct {
		seen, total uint64
		want        int64
		known       bool
	}{{100, 160, 60, true}, {160, 100, -60, true}, {unknown, 160, 0, false}, {100, unknown, 0, false}, {unknown, unknown, 0, false}} {
		gap, known := (&Device{SegmentBytes: row.seen, Total: row.total}).SegmentGap()
		require.Equal(t, row.want, gap)
		require.Equal(t, row.known, known)
	}
}

func cuda(ordinal int) event.Device {
	return event.Device{Type: event.DeviceCUDA, Index: int8(ordinal)}
}

// TestOnlyDevice: memory of which the device is not named is on the only one that the process uses; where there may
// be several, it is on none.
func TestOnlyDevice(t *testing.T) {
	unnamed := func(n int) (out []figures.DriverUse) {
		for range n {
			out = append(out, driverSays(-1, 5))
		}
		return out
	}
	other := on(cuda(0), site(event.LayerDevice, pid+1, 2, 1, 9))
	host := on(cuda(0), site(event.LayerHost, pid, 2, 1, 9))
	freed := on(cuda(0), site(event.LayerDevice, pid, 2, 0, 0))
	for _, c := range []struct {
		what   string
		driver []figures.DriverUse
		torch  []figures.TorchMemory
		sites  []heap.Site
		want   *event.Device
	}{
		{"nothing", nil, nil, nil, nil},
		{"one of the driver", []figures.DriverUse{driverSays(1, 5)}, nil, nil, &cuda1},
		{"two of the driver", []figures.DriverUse{driverSays(0, 5), driverSays(1, 5)}, nil, nil, nil},
		{"one with memory, and the driver names none", unnamed(1), nil, []heap.Site{on(cuda1, site(event.LayerDevice, pid, 2, 1, 9))}, &cuda1},
		{"the first one", unnamed(1), nil, []heap.Site{on(cuda(0), site(event.LayerDevice, pid, 2, 1, 9))},
			&event.Device{Type: event.DeviceCUDA}},
		{"the driver names none of two", unnamed(2), nil, []heap.Site{on(cuda1, site(event.LayerDevice, pid, 2, 1, 9))}, nil},
		{"two with memory", unnamed(1), nil, []heap.Site{on(cuda1, site(event.LayerDevice, pid, 2, 1, 9)),
			on(cuda(0), site(event.LayerDevice, pid, 2, 2, 9))}, nil},
		{"another process's, host memory, and none", []figures.DriverUse{driverSays(1, 5)}, nil, []heap.Site{other, host, freed}, &cuda1},
		{"of several the driver says nothing", nil, []figures.TorchMemory{{Device: 0}, {Device: 1}},
			[]heap.Site{on(cuda1, site(event.LayerDevice, pid, 2, 1, 9))}, nil},
		{"there is one", nil, []figures.TorchMemory{{Device: 1}}, []heap.Site{on(cuda1, site(event.LayerDevice, pid, 2, 1, 9))}, &cuda1},
	} {
		b := &balancer{in: &Input{PID: pid, Driver: c.driver, Torch: c.torch, View: watched(c.sites...)}, devices: map[event.Device]*Device{}}
		require.Equal(t, c.want, b.onlyDevice(), c.what)
	}
}

// TestNumberedDevice: a number is CUDA's, or a Mac's in a process that uses that.
func TestNumberedDevice(t *testing.T) {
	const mps event.DeviceType = 13 // c10/core/DeviceType.h
	of := func(accounts ...heap.Account) event.Device {
		v := view.New(&heap.Snapshot{Totals: heap.Totals{Accounts: accounts}}, nil, nil)
		return (&balancer{in: &Input{PID: pid, View: v}}).numbered(0)
	}
	require.Equal(t, event.Device{Type: event.DeviceCUDA}, of(heap.Account{PID: pid}))
	require.Equal(t, event.Device{Type: mps}, of(heap.Account{PID: pid, Device: event.Device{Type: mps}}))
	require.Equal(t, event.Device{Type: event.DeviceCUDA}, of(heap.Account{PID: pid + 1, Device: event.Device{Type: mps}}))
	require.Equal(t, cuda1, (&balancer{in: &Input{PID: pid}}).numbered(1), "without events")
}

// TestNoTorch: where the allocator's state cannot be read, nothing of it is known, but on no device that has no number.
func TestNoTorch(t *testing.T) {
	require.Equal(t, Torch{}, (&balancer{in: &Input{}}).noTorch(cuda1))
	require.Equal(t, Torch{}, (&balancer{in: &Input{TorchWhy: "no"}}).noTorch(anyDevice))
	require.Equal(t, Torch{unknown, unknown, unknown, unknown, unknown, unknown}, (&balancer{in: &Input{TorchWhy: "no"}}).noTorch(cuda(0)))
	d := &Device{Used: unknown}
	bytes, known := d.Remainder()
	require.False(t, known)
	require.Zero(t, bytes)
}
