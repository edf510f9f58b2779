// SPDX-License-Identifier: Apache-2.0

//go:build linux

package objgraph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// TestThreadReadings: of readings of a thread that runs, the one that ends with the outermost frame is taken, and a frame that has just
// returned is none.
func TestThreadReadings(t *testing.T) {
	list := func(frames ...uint64) (out pyobject.ThreadState) {
		for _, addr := range frames {
			out.Frames = append(out.Frames, pyobject.Activation{Addr: addr})
		}
		return out
	}
	cut := func(frames ...uint64) pyobject.ThreadState {
		out := list(frames...)
		out.Cut = true
		return out
	}
	const root = 0x1000
	for name, tt := range map[string]struct {
		readings []pyobject.ThreadState
		whole    bool
		frames   int
	}{
		"a thread without frames":    {[]pyobject.ThreadState{list(), list(), list(), list()}, true, 0},
		"all agree":                  {[]pyobject.ThreadState{list(9, root), list(9, root), list(9, 8, root), list(9, root)}, true, 3},
		"a frame that has returned":  {[]pyobject.ThreadState{list(9), list(9), list(8, root), list(), list(9, 8, root)}, false, 3},
		"more often than not":        {[]pyobject.ThreadState{list(9), list(8, root), list(8, root), list(8, root), list(8, root)}, true, 2},
		"never to the outermost one": {[]pyobject.ThreadState{cut(9), cut(9, 8, 7), list()}, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := &threadReadings{roots: map[uint64]int{}, ends: map[uint64]pyobject.ThreadState{}}
			for _, reading := range tt.readings {
				r.add(reading)
			}
			require.Equal(t, tt.whole, r.whole())
			require.Len(t, r.best().Frames, tt.frames)
		})
	}
}
