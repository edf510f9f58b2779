// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// whole is a GPU that is used as a whole.
func whole(index int, processes ...Process) Device {
	uuid := []string{"GPU-aaaa-0", "GPU-aabb-1", "GPU-bbbb-2"}[index]
	return Device{Index: index, Minor: index, Product: "H200", UUID: uuid, GPU: uuid, MIG: -1, GPUInstance: -1, ComputeInstance: -1,
		Processes: processes}
}

// part is a MIG device.
func part(index, mig, instance int, processes ...Process) Device {
	d := whole(index, processes...)
	d.MIG, d.GPUInstance, d.ComputeInstance = mig, instance, 0
	d.UUID = "MIG-" + d.UUID[4:8] + string(rune('a'+mig))
	return d
}

func set(s string) *string { return &s }

// at names a device in a test: GPU index and MIG index.
type at struct{ gpu, mig int }

func TestVisible(t *testing.T) {
	three := []Device{whole(0), whole(1), whole(2)}
	slower := []Device{whole(0), whole(1), whole(2)}
	slower[1].Product = "T4"
	divided := []Device{part(0, 0, 7), part(0, 1, 9), part(1, 0, 7)}
	mixed := []Device{whole(0), part(1, 0, 7), part(1, 1, 9)}
	tests := []struct {
		name    string
		devices []Device
		visible *string
		order   string
		nodes   []int // minors that it sees; nil: no device files
		want    []at
		unknown string // why
	}{
		{name: "all", devices: three, want: []at{{0, -1}, {1, -1}, {2, -1}}},
		{name: "none", devices: three, visible: set("")},
		{name: "minus one", devices: three, visible: set("-1")},
		{name: "permuted", devices: three, visible: set("2,0"), want: []at{{2, -1}, {0, -1}}},
		{name: "spaces", devices: three, visible: set(" 1 , 2"), want: []at{{1, -1}, {2, -1}}},
		{name: "ends at a wrong word", devices: three, visible: set("1,3,0"), want: []at{{1, -1}}},
		{name: "ends at no number", devices: three, visible: set("1,x,0"), want: []at{{1, -1}}},
		{name: "twice", devices: three, visible: set("1,1")},
		{name: "uuid", devices: three, visible: set("GPU-bbbb-2,0"), want: []at{{2, -1}, {0, -1}}},
		{name: "front of a uuid", devices: three, visible: set("GPU-b"), want: []at{{2, -1}}},
		{name: "front of two uuids", devices: three, visible: set("GPU-aa")},
		{name: "fastest first", devices: slower, unknown: "CUDA_DEVICE_ORDER"},
		{name: "fastest first, index", devices: slower, visible: set("0"), unknown: "CUDA_DEVICE_ORDER"},
		{name: "fastest first, uuid", devices: slower, visible: set("GPU-aabb"), want: []at{{1, -1}}},
		{name: "by bus", devices: slower, order: "PCI_BUS_ID", want: []at{{0, -1}, {1, -1}, {2, -1}}},
		{name: "container with two", devices: three, nodes: []int{0, 2}, want: []at{{0, -1}, {2, -1}}},
		{name: "container, its second", devices: three, nodes: []int{0, 2}, visible: set("1"), want: []at{{2, -1}}},
		{name: "container of equal ones", devices: slower, nodes: []int{0, 2}, want: []at{{0, -1}, {2, -1}}},
		{name: "mig", devices: divided, want: []at{{0, 0}}},
		{name: "mig by uuid", devices: divided, visible: set("MIG-aaaab"), want: []at{{0, 1}}},
		{name: "mig by its old name", devices: divided, visible: set("MIG-GPU-aaaa-0/9/0"), want: []at{{0, 1}}},
		{name: "mig by its gpu", devices: divided, visible: set("GPU-aabb-1"), want: []at{{1, 0}}},
		{name: "mig, first of gpu", devices: divided, visible: set("GPU-aaaa-0"), want: []at{{0, 0}}},
		{name: "mig by index", devices: divided, visible: set("1"), want: []at{{1, 0}}},
		{name: "mig wrong", devices: divided, visible: set("MIG-zz")},
		{name: "some mig", devices: mixed, unknown: "MIG"},
		{name: "some mig, named", devices: mixed, visible: set("MIG-aabbb"), want: []at{{1, 1}}},
		{name: "nothing", devices: nil, visible: set("0")},
		{name: "nothing, all", devices: nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &Reading{Devices: tt.devices}
			target := &Target{Visible: tt.visible, Order: tt.order, hasNode: func(minor int) bool {
				for _, n := range tt.nodes {
					if n == minor {
						return true
					}
				}
				return false
			}}
			got, err := r.visible(target)
			if tt.unknown != "" {
				require.ErrorIs(t, err, ErrOrder)
				require.ErrorContains(t, err, tt.unknown)
				return
			}
			require.NoError(t, err)
			var places []at
			for _, d := range got {
				places = append(places, at{d.Index, d.MIG})
			}
			require.Equal(t, tt.want, places)
		})
	}
}

// use is what a test expects of a Use.
type use struct {
	ordinal, gpu int
	used         uint64
	err          error
}

func TestOf(t *testing.T) {
	const mine, inner = 4711, 7
	other := Process{PID: 99, Used: 5}
	all := []use{{0, 0, Unknown, ErrNotListed}, {1, 1, Unknown, ErrNotListed}}
	broken := errors.New("GPU is lost")
	lost := whole(0)
	lost.Err = broken
	tests := []struct {
		name    string
		devices []Device
		visible *string
		exists  []int // PIDs that we see beside our target's
		inner   bool  // we are in a namespace of our own
		want    []use
		unknown bool // which device is which
	}{
		{name: "listed", devices: []Device{whole(0, other, Process{mine, 10}), whole(1)},
			want: []use{{0, 0, 10, nil}, {1, 1, Unknown, ErrNotListed}}},
		{name: "second of two", devices: []Device{whole(0, other), whole(1, Process{mine, 10})}, visible: set("1"), want: []use{{0, 1, 10, nil}}},
		{name: "not listed", devices: []Device{whole(0, other), whole(1)}, want: all},
		{name: "blind", devices: []Device{whole(0), whole(1)}, want: all},
		{name: "without a figure", devices: []Device{whole(0, Process{mine, Unknown})}, want: []use{{0, 0, Unknown, ErrNoFigure}}},
		{name: "device without a list", devices: []Device{lost}, want: []use{{0, 0, Unknown, broken}}},
		{name: "on a device that it does not see", devices: []Device{whole(0), whole(1, Process{mine, 10})}, visible: set("0"), unknown: true,
			want: []use{{-1, 0, Unknown, ErrNotListed}, {-1, 1, 10, nil}}},
		{name: "inner number", devices: []Device{whole(0, Process{inner, 10})}, want: []use{{0, 0, 10, nil}}},
		{name: "inner number of somebody else", devices: []Device{whole(0, Process{inner, 10})}, exists: []int{inner}, want: all[:1]},
		{name: "in a container, own numbers", devices: []Device{whole(0, Process{mine, 10})}, inner: true, want: []use{{0, 0, 10, nil}}},
		{name: "in a container, the host's numbers", devices: []Device{whole(0, Process{mine, 10}, Process{88888, 3})}, inner: true,
			want: all[:1]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := &Target{
				PIDs: []int{mine, inner}, Visible: tt.visible, inner: tt.inner,
				hasNode: func(int) bool { return false },
				sees: func(pid int) bool {
					for _, p := range append(tt.exists, mine) {
						if p == pid {
							return true
						}
					}
					return false
				},
			}
			got, err := (&Reading{Devices: tt.devices}).Of(target)
			require.Equal(t, tt.unknown, errors.Is(err, ErrOrder), "%v", err)
			require.Len(t, got, len(tt.want))
			for i, want := range tt.want {
				require.Equal(t, want.ordinal, got[i].Ordinal)
				require.Equal(t, want.gpu, got[i].Device.Index)
				require.Equal(t, want.used, got[i].Used)
				require.ErrorIs(t, got[i].Err, want.err)
			}
		})
	}
}

// TestOfUnordered: where the order is not known, only the devices that list the process are of use.
func TestOfUnordered(t *testing.T) {
	slower := whole(1, Process{4711, 10})
	slower.Product = "T4"
	target := &Target{PIDs: []int{4711}, hasNode: func(int) bool { return false }}
	got, err := (&Reading{Devices: []Device{whole(0), slower}}).Of(target)
	require.ErrorIs(t, err, ErrOrder)
	require.Len(t, got, 1)
	require.Equal(t, -1, got[0].Ordinal)
	require.Equal(t, uint64(10), got[0].Used)

	target.Environment = errors.New("not permitted")
	got, err = (&Reading{Devices: []Device{whole(0, Process{4711, 10})}}).Of(target)
	require.ErrorIs(t, err, ErrOrder)
	require.Len(t, got, 1)
	require.Equal(t, -1, got[0].Ordinal)
}

func TestAddProcess(t *testing.T) {
	var list []Process
	for _, p := range []Process{{1, 10}, {2, Unknown}, {3, 0}, {2, 7}, {1, Unknown}, {1, 10}} {
		list = addProcess(list, p)
	}
	require.Equal(t, []Process{{1, 10}, {2, 7}, {3, Unknown}}, list)
}

// FuzzVisible: whatever a program has in its environment, each device that it sees is one of the machine's, and there once.
func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", "0,1", "GPU-aa,GPU-b", "MIG-GPU-aaaa-0/9/0", "-1,99999999999999999999", ",,", "MIG-", "GPU-"} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, visible string, divided bool) {
		r := &Reading{Devices: []Device{whole(0), whole(1), whole(2)}}
		if divided {
			r.Devices = []Device{part(0, 0, 7), part(0, 1, 9), whole(1), part(2, 0, 7)}
		}
		seen, err := r.visible(&Target{Visible: &visible, hasNode: func(int) bool { return false }})
		require.NoError(t, err)
		once := map[*Device]bool{}
		for _, d := range seen {
			require.False(t, once[d], visible)
			once[d] = true
		}
		require.LessOrEqual(t, len(once), len(r.Devices))
	})
}
