// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQuick: a burst is fast enough by itself or, on a machine on which none is, beside the others.
func TestQuick(t *testing.T) {
	fast, slow, stalled := 100*time.Microsecond, 3*time.Millisecond, 30*time.Millisecond
	for name, tt := range map[string]struct {
		took []time.Duration
		want []bool
	}{
		"fast":                {[]time.Duration{fast, fast}, []bool{true, true}},
		"interrupted":         {[]time.Duration{fast, slow, fast}, []bool{true, false, true}},
		"often interrupted":   {[]time.Duration{fast, slow, slow, slow, slow, slow}, []bool{true, false, false, false, false, false}},
		"slow machine":        {[]time.Duration{slow, slow, slow, slow}, []bool{false, false, false, true}},
		"slow, and stalled":   {[]time.Duration{slow, stalled, slow, stalled, slow}, []bool{false, false, false, false, true}},
		"stalled in the end":  {[]time.Duration{fast, stalled}, []bool{true, false}},
		"slow at a beginning": {[]time.Duration{slow, fast, slow}, []bool{false, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &proof{}
			for i, took := range tt.took {
				require.Equal(t, tt.want[i], p.quick(took, 40), "burst %d", i)
			}
		})
	}
}

// TestInTurn: a part of each shape is proved first, so that something is known of all when the time ends.
func TestInTurn(t *testing.T) {
	var claims []claim
	for i := range 3 * proofBlocks {
		claims = append(claims, claim{block: i, shape: "many"})
	}
	claims = append(claims, claim{block: 1000, shape: "one"})
	inTurn(claims)
	require.Equal(t, "one", claims[proofBlocks].shape)
	require.Equal(t, proofBlocks, claims[proofBlocks+1].block, "in order otherwise")
}

// TestTrusted: paths that were read twice are taken for proved by others of their shape, not by few, and not where those often fail.
func TestTrusted(t *testing.T) {
	made := func(n int, shape string) []claim { return slices.Repeat([]claim{{shape: shape}}, n) }
	for name, tt := range map[string]struct {
		tried, failed, late int
		want                bool
	}{
		"none":            {},
		"all late":        {tried: 100, late: 100},
		"few":             {tried: trustFrom - 1},
		"enough":          {tried: trustFrom, want: true},
		"some late":       {tried: 100, late: 100 - trustFrom, want: true},
		"one of them":     {tried: trustShare, failed: 1, want: true},
		"more than share": {tried: 2*trustShare - 1, failed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			shapes := map[string]tally{}
			count(shapes, made(tt.tried, "a"), made(tt.failed, "a"), made(tt.late, "a"))
			require.Equal(t, tt.want, shapes["a"].trusted())
			require.False(t, shapes["b"].trusted())
		})
	}
}

// TestTrust: where the time is over, paths of a trusted shape keep their names, and it is known that they were not proved.
func TestTrust(t *testing.T) {
	a := &assembly{live: &liveBlocks{blocks: make([]Block, 4)}}
	shapes := map[string]tally{"many": {tried: trustFrom}, "few": {tried: trustFrom - 1}}
	late := []claim{{block: 0, shape: "many"}, {block: 1, shape: "few"}, {block: 2, shape: "many"}}
	require.Equal(t, late[1:2], a.trust(late, shapes))
	for i, want := range []bool{true, false, true, false} {
		require.Equal(t, want, a.live.blocks[i].ByShape, "block %d", i)
	}
}
