// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recording/pytorch"
)

// place is where a native frame is: a file, the address in it, and the function.
type place struct {
	file   string
	offset uint64
	name   string
}

// recorded is the torch allocations of a snapshot's history.
func recorded(t *testing.T, path string) ([]event.Event, *pytorch.Source) {
	t.Helper()
	s, err := pytorch.Open(path)
	require.NoError(t, err)
	var out []event.Event
	for {
		events, err := s.Read(make([]event.Event, 0, 1000))
		for _, e := range events {
			if e.Layer == event.LayerAllocator && e.Kind == event.KindAlloc {
				out = append(out, e)
			}
		}
		s.Annotations()
		if errors.Is(err, io.EOF) {
			return out, s
		}
		require.NoError(t, err)
	}
}

// TestRecorderNative compares native frames with those that PyTorch's recorder unwinds in the process: address by address from the
// allocator outwards, and by name where it has one.
func TestRecorderNative(t *testing.T) {
	for script, args := range map[string][]string{"mlp.py": {"--steps", "20"}, "gpt.py": {"--steps", "3"}} {
		t.Run(script, func(t *testing.T) {
			p := startTrainingIn(t, nil, script, append(args, "--snapshot", "DIR/snapshot", "--history", "all")...).ready(t)
			tr := attach(t, p.pid, options(), nil)
			p.release(t)
			p.done(t)
			tr.finishWhole(t)
			theirs, source := recorded(t, filepath.Join(p.dir, "snapshot"))
			ours := slices.DeleteFunc(tr.layer(event.LayerAllocator), func(e event.Event) bool { return e.Kind != event.KindAlloc })
			require.Len(t, theirs, len(ours))
			frames, named := 0, 0
			for i := range ours {
				require.Equal(t, theirs[i].Addr, ours[i].Addr, "event %d", i)
				want, got := places(source.Stack(theirs[i].Stack), 0), places(tr.target.Stack(ours[i].Stack), 1)
				require.Greater(t, len(want), 10, "event %d", i)
				// The first is the allocator's, which takes the stack at another place than it reports at.
				want = want[1:]
				got = got[max(0, len(got)-len(want)):]
				require.Equal(t, offsets(want), offsets(got), "event %d", i)
				for j := range want {
					if want[j].name != "" && !strings.ContainsAny(want[j].name, "<(") {
						require.Equal(t, want[j].name, got[j].name, "event %d, %s+%#x", i, want[j].file, want[j].offset)
						named++
					}
				}
				frames += len(want)
			}
			require.Greater(t, named, frames/10)
			t.Logf("%d allocations, %d native frames equal, %d of them by name", len(ours), frames, named)
		})
	}
}

// places are a stack's native frames, leaf first. The recorder's are the calls themselves, ours where they return to: back is how
// far behind.
func places(s *event.Stack, back uint64) []place {
	var out []place
	for i := range s.Frames {
		if f := &s.Frames[i]; f.Kind == event.FrameNative && f.Module != nil && !f.Inlined {
			library, _, _ := strings.Cut(filepath.Base(f.Module.Path), ".so") // the recorder names links
			out = append(out, place{library, f.Offset - back, f.Func})
		}
	}
	return out
}

func offsets(list []place) []place {
	out := slices.Clone(list)
	for i := range out {
		out[i].name = ""
	}
	return out
}
