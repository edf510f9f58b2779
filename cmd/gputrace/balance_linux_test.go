//go:build amd64

package main

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/nvml"
	"github.com/gputrace/gputrace/process"
)

func h200(index int) *nvml.Device {
	return &nvml.Device{Index: index, MIG: -1, Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, Used: nvml.Unknown}
}

func TestMomentInput(t *testing.T) {
	m := &moment{
		moved: true, driverErr: nvml.ErrOrder,
		uses: []nvml.Use{{Ordinal: 1, Device: h200(0), Used: 7}, {Ordinal: -1, Device: h200(1), Used: nvml.Unknown, Err: nvml.ErrNotListed}},
	}
	in := m.input(4711)
	require.EqualValues(t, 4711, in.PID)
	require.True(t, in.Moved)
	require.Equal(t, nvml.ErrOrder.Error(), in.DriverWhy)
	require.Nil(t, in.Torch)
	require.Equal(t, []balance.DriverUse{
		{Device: 1, Used: 7, Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, All: event.Unknown},
		{Device: -1, Used: event.Unknown, Why: nvml.ErrNotListed.Error(), Name: "NVIDIA H200", UUID: "GPU-1", Total: 3 << 30, All: event.Unknown},
	}, in.Driver)
}

func TestSameUse(t *testing.T) {
	use := nvml.Use{Ordinal: 1, Device: h200(0), Used: 7}
	for name, change := range map[string]func(u *nvml.Use){
		"ordinal": func(u *nvml.Use) { u.Ordinal++ },
		"used":    func(u *nvml.Use) { u.Used++ },
		"device":  func(u *nvml.Use) { u.Device = h200(1) },
	} {
		other := use
		require.True(t, sameUse(use, other))
		change(&other)
		require.False(t, sameUse(use, other), name)
	}
}

func TestTold(t *testing.T) {
	d := &driver{looked: make(chan struct{}), version: "580.65", seen: []nvml.Use{{Device: h200(0)}, {Ordinal: -1, Device: h200(1)}, {}, {}}}
	version, devices := d.told()
	require.Empty(t, version)
	require.Empty(t, devices)
	close(d.looked)
	version, devices = d.told()
	require.Equal(t, "580.65", version)
	require.Equal(t, []string{"cuda:0 NVIDIA H200 3.0 GiB", "cuda:? NVIDIA H200 3.0 GiB", "and 2 more"}, devices)
}

// TestBalanceWithoutBooks: what the allocator's books are to a balance when they could not be read.
func TestBalanceWithoutBooks(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	require.False(t, loadsDriver(p))
	layout := errors.New("layout")
	for name, tt := range map[string]struct {
		found, read error // of the allocator, of its map
		want        uint64
	}{
		"no allocator":      {found: inspect.ErrNoAllocator},
		"another allocator": {found: inspect.ErrOtherBackend},
		"not found":         {found: layout, want: event.Unknown},
		"not read":          {read: layout, want: event.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := &session{target: p, driver: &driver{fresh: true}, heap: &ledger{Heap: heap.New()}}
			s.books.err = tt.found
			m := &moment{booksErr: tt.read, uses: []nvml.Use{{Device: h200(0), Used: 7}}}
			b := balance.New(s.balance(m, nil))
			require.Len(t, b.Devices, 1)
			require.True(t, b.Devices[0].Whole)
			require.Equal(t, tt.want, b.Devices[0].Torch.Reserved)
			if tt.want == event.Unknown {
				require.Equal(t, "layout", b.Devices[0].TorchWhy)
			}
		})
	}
	gone := *p
	gone.StartTime++
	s := &session{target: &gone, driver: &driver{}, heap: &ledger{Heap: heap.New()}}
	b := balance.New(s.balance(&moment{uses: []nvml.Use{{Device: h200(0), Used: 7}}}, nil))
	require.Empty(t, b.Devices, "what is said of another process of that number is not believed")
	require.Equal(t, "the process has ended", b.DriverWhy)
}
