// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// TestBalanceWithoutState: what the allocator's state is to a balance when it could not be read.
func TestBalanceWithoutState(t *testing.T) {
	layout := errors.New("layout")
	uses := []figures.DriverUse{{Device: 0, Used: 7, Total: 3 << 30}}
	for name, tt := range map[string]struct {
		found, read error // of the allocator, of its map
		want        uint64
	}{
		"no allocator": {found: noStateHere},
		"not found":    {found: layout, want: event.Unknown},
		"not read":     {read: layout, want: event.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Process{target: &madeTarget{pid: 7}, stateErr: tt.found, heap: &recordedHeap{Heap: heap.New()}}
			b := balance.New(p.balance(&Memory{TorchErr: tt.read, Driver: uses, Fresh: true}, nil))
			require.Len(t, b.Devices, 1)
			require.True(t, b.Devices[0].Whole)
			require.Equal(t, tt.want, b.Devices[0].Torch.Reserved)
			if tt.want == event.Unknown {
				require.Equal(t, "layout", b.Devices[0].TorchWhy)
			}
		})
	}
	p := &Process{target: &madeTarget{pid: 7, ended: true}, heap: &recordedHeap{Heap: heap.New()}}
	b := balance.New(p.balance(&Memory{Driver: uses}, nil))
	require.Empty(t, b.Devices, "what is said of another process of that number is not believed")
	require.Equal(t, "the process has ended", b.DriverWhy)
}
