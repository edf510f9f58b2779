// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestRMMNames: the functions of each release have a row, and those beside them none.
func TestRMMNames(t *testing.T) {
	const (
		take, give, ask = "pool_memory_resource::allocate_from_block", "pool_memory_resource::free_block", "device_buffer::allocate_async"
	)
	for symbol, want := range map[string]string{
		"_ZN3rmm2mr6detail25pool_memory_resource_impl19allocate_from_blockERKNS1_5blockEm":             take, // 26.6
		"_ZN3rmm9_RMM_26_82mr6detail25pool_memory_resource_impl19allocate_from_blockERKNS2_5blockEm":   take,
		"_ZN3rmm10_RMM_26_102mr6detail25pool_memory_resource_impl19allocate_from_blockERKNS2_5blockEm": take,
		"_ZN3rmm2mr6detail25pool_memory_resource_impl10free_blockEPvm":                                 give,
		"_ZN3rmm10_RMM_26_102mr6detail25pool_memory_resource_impl10free_blockEPvm":                     give,
		"_ZN3rmm13device_buffer14allocate_asyncEm":                                                     ask,
		"_ZN3rmm10_RMM_26_1013device_buffer14allocate_asyncEm":                                         ask,
		"allocate":   "allocate of RMM for PyTorch",
		"deallocate": "",
		"_ZN3rmm10_RMM_26_102mr6detail31fixed_size_memory_resource_impl19allocate_from_blockERKNS2_10block_baseEm": "",
		"_ZN3rmm10_RMM_26_102mr6detail31fixed_size_memory_resource_impl10free_blockEPvm":                           "",
		"_ZN3rmm10_RMM_26_1013device_buffer16deallocate_asyncEv":                                                   "",
	} {
		got := ""
		for i := range rmmRows {
			if rmmRows[i].MatchesName(symbol) {
				require.Empty(t, got, "%s has two rows", symbol)
				got = rmmRows[i].Title
			}
		}
		require.Equal(t, want, got, symbol)
	}
}

// TestRMMRequested: a request counts only if the block is what the pool makes of it.
func TestRMMRequested(t *testing.T) {
	r := &rmmRows[0]
	for _, c := range []struct{ block, request, want uint64 }{
		{256, 1, 1}, {256, 256, 256}, {512, 257, 257}, {1 << 40, 1<<40 - 255, 1<<40 - 255},
		{256, 0, 256}, // none was seen, or a report took it
		{512, 256, 512}, {256, 512, 256}, {256, event.Unknown, 256}, {1 << 40, 1<<40 - 256, 1 << 40},
	} {
		got, ok := r.EventRequested([]uint64{c.block, c.request})
		require.True(t, ok)
		require.Equal(t, c.want, got, "%+v", c)
		require.Equal(t, c.block, r.EventSize([]uint64{c.block, c.request}))
	}
	_, ok := rmmRows[1].EventRequested([]uint64{256})
	require.False(t, ok, "a free does not say it")
}
