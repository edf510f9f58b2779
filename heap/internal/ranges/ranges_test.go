// SPDX-License-Identifier: Apache-2.0

package ranges

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/codec"
	"github.com/gputrace/gputrace/heap/internal/division"
)

// TestList compares a list with an array that has the device of each address.
func TestList(t *testing.T) {
	const size = 64
	rng := rand.New(rand.NewPCG(1, 2))
	var l List
	var want [size]int8 // 0: in no range
	for range 5000 {
		lo := rng.Uint64N(size)
		hi := lo + 1 + rng.Uint64N(size-lo)
		device := event.Device{Type: event.DeviceCUDA, Index: int8(rng.IntN(2))}
		cut := uint64(0)
		for at := lo; at < hi; at++ {
			if want[at] != 0 {
				cut++
			}
		}
		if rng.IntN(2) == 0 {
			l.Add(Range{lo, hi, device})
			fill(want[lo:hi], device.Index+1)
		} else {
			sum := uint64(0)
			for _, r := range l.Cut(lo, hi) {
				sum += r.End - r.Start
			}
			require.Equal(t, cut, sum)
			fill(want[lo:hi], 0)
		}
		compare(t, l, want[:])
	}
	out := codec.Codec{}
	l.Code(&out)
	var again List
	in := codec.Codec{Load: true, Data: out.Data}
	again.Code(&in)
	require.NoError(t, in.Err)
	require.Equal(t, l, again)
}

func fill(list []int8, v int8) {
	for i := range list {
		list[i] = v
	}
}

func compare(t *testing.T, l List, want []int8) {
	t.Helper()
	var bytes [3]uint64
	for at, device := range want {
		bytes[device]++
		r, ok := l.Find(uint64(at))
		require.Equal(t, device != 0, ok)
		require.True(t, !ok || r.Start <= uint64(at) && uint64(at) < r.End && r.Device.Index == device-1)
	}
	for i := range int8(2) {
		require.Equal(t, bytes[i+1], l.Bytes(event.Device{Type: event.DeviceCUDA, Index: i}))
	}
	for i := 1; i < len(l); i++ {
		require.LessOrEqual(t, l[i-1].End, l[i].Start)
	}
}

// TestEmptyRangeInState: a state with a range that ends before it begins is refused.
func TestEmptyRangeInState(t *testing.T) {
	out := codec.Codec{}
	l := List{{Start: 2, End: 2}}
	l.Code(&out)
	in := codec.Codec{Load: true, Data: out.Data}
	(&List{}).Code(&in)
	require.ErrorContains(t, in.Err, "a range ends at 0x2")
}

// TestReplace: what is read of a device takes the place of what was known of it, and of nothing else.
func TestReplace(t *testing.T) {
	x, y := event.Device{Type: event.DeviceCUDA}, event.Device{Type: event.DeviceCUDA, Index: 1}
	var l List
	l.Replace(x, []event.ObservedSegment{{Addr: 30, Size: 10}, {Addr: 10, Size: 10}, {Addr: 50}, {Addr: ^uint64(0), Size: 9}})
	l.Replace(y, []event.ObservedSegment{{Addr: 100, Size: 1}})
	require.Equal(t, List{{10, 20, x}, {30, 40, x}, {100, 101, y}}, l)
	l.Replace(x, nil)
	require.Len(t, l, 3)
	l.Replace(x, []event.ObservedSegment{{Addr: 12, Size: 1}})
	require.Equal(t, []division.Segment{{Addr: 12, Size: 1, Mapped: true}}, l.Segments(x, true))
	l.Replace(x, []event.ObservedSegment{})
	require.Nil(t, l.Segments(x, false))
	require.Equal(t, []division.Segment{{Addr: 100, Size: 1}}, l.Segments(y, false))
}
