// SPDX-License-Identifier: Apache-2.0

//go:build linux

package objgraph

import (
	"context"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/process"
)

const (
	// threadTries is how often the threads are read until every list of frames is whole, twice at least: those of a running
	// thread change while they are followed.
	threadTries = 12
	// threadPages bounds what one of these readings takes, 64 MiB.
	threadPages = 1 << 14
)

// ThreadsNow reads the threads and their frames from the process itself, as quickly as can be: in a copy that took a while,
// a frame that ended in between may have cut off all those that it was called from. read is how many bytes it read.
func ThreadsNow(ctx context.Context, m process.Memory, h *pyobject.Heap, regions []memory.Region) (best []pyobject.ThreadState, read uint64) {
	im, err := memory.New(ctx, m, regions, threadPages)
	if err != nil {
		return nil, 0
	}
	defer im.Close()
	at := map[uint64]int{}
	for n := range threadTries {
		whole := n > 0
		im.Forget()
		for _, t := range h.ThreadStates(im) {
			i, ok := at[t.Addr]
			if !ok {
				i = len(best)
				at[t.Addr], best = i, append(best, t)
			} else if better(&t, &best[i]) {
				best[i] = t
			}
			whole = whole && !best[i].Cut
		}
		if whole {
			break
		}
	}
	return best, im.BytesRead()
}

// better reports whether a thread was read more completely than before.
func better(t, before *pyobject.ThreadState) bool {
	if t.Cut != before.Cut {
		return before.Cut
	}
	return len(t.Frames) > len(before.Frames)
}
