// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
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
