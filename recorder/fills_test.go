// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// TestFills: holders are read once each at a half, three quarters and nine tenths of what PyTorch can have of a device.
func TestFills(t *testing.T) {
	reserve := func(f *fills, gib uint64) bool {
		f.see(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda0, Reserved: gib << 30})
		return f.reached()
	}
	sizes := []figures.DeviceSize{{Bytes: 81 << 29}}
	for name, tt := range map[string]struct {
		reading figures.Reading
		want    []uint64 // GiB
	}{
		"a device of 40.5 GiB":      {figures.Reading{Sizes: sizes}, []uint64{20, 30, 36}},
		"the driver says its size":  {figures.Reading{Driver: []figures.DriverUse{{Total: 81 << 29}}}, []uint64{20, 30, 36}},
		"the program's own limit":   {figures.Reading{Sizes: sizes, Limits: []figures.Limit{{Bytes: 20 << 30}}}, []uint64{10, 15, 18}},
		"its size is not known":     {figures.Reading{Sizes: []figures.DeviceSize{{Bytes: figures.Unknown}}}, nil},
		"that of another is known":  {figures.Reading{Sizes: []figures.DeviceSize{{Device: 1, Bytes: 81 << 29}}}, nil},
		"a limit of another device": {figures.Reading{Sizes: sizes, Limits: []figures.Limit{{Device: 1, Bytes: 1}}}, []uint64{20, 30, 36}},
	} {
		f := &fills{}
		require.False(t, f.isNew(), name)
		require.False(t, reserve(f, 1), name)
		require.True(t, f.isNew(), name)
		f.read(&tt.reading)
		require.Equal(t, tt.want == nil, f.isNew(), name)
		var at []uint64
		for gib := range uint64(40) {
			if reserve(f, gib) {
				at = append(at, gib)
			}
			require.False(t, f.reached(), "once each")
		}
		require.Equal(t, tt.want, at, name)
	}
	f := &fills{}
	f.read(&figures.Reading{Sizes: sizes})
	require.True(t, reserve(f, 39), "all at once: one reading")
	f.see(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda0, Reserved: event.Unknown})
	require.False(t, f.reached())
}

// TestLookAhead: a device of unknown size is read at once, and its holders are read when it is half full.
func TestLookAhead(t *testing.T) {
	target := &madeTarget{pid: 7, memory: &Memory{Time: 9, Sizes: []figures.DeviceSize{{Bytes: 81 << 29}}}}
	f := begun(t, target, nil).failures
	f.due = time.Now().Add(time.Hour)
	f.step()
	require.Nil(t, f.reading)
	f.next([]event.Event{{Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda0, Reserved: 21 << 30}})
	f.step()
	require.NotNil(t, f.reading)
	require.Nil(t, f.answers)
	require.Eventually(t, func() bool { f.step(); return f.answers != nil }, 10*time.Second, time.Millisecond)
}
