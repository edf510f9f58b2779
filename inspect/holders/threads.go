// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import "github.com/gputrace/gputrace/cpython"

const (
	// threadTries is how often the threads are read until every list of frames is whole, twice at least: those of a running
	// thread change while they are followed.
	threadTries = 12
	// threadPages bounds what one of these readings takes, 64 MiB.
	threadPages = 1 << 14
)

// threadsNow reads the threads and their frames from the process itself, as quickly as can be: in a copy that took a while,
// a frame that ended in between may have cut off all those that it was called from.
func (r *reading) threadsNow(h *cpython.Heap, regions []region) []cpython.ThreadState {
	im, err := newImage(r.p, regions, threadPages)
	if err != nil {
		return nil
	}
	defer im.close()
	var best []cpython.ThreadState
	at := map[uint64]int{}
	for n := range threadTries {
		whole := n > 0
		im.forget()
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
	r.report.Stats.BytesRead += im.bytes
	return best
}

// better reports whether a thread was read more completely than before.
func better(t, before *cpython.ThreadState) bool {
	if t.Cut != before.Cut {
		return before.Cut
	}
	return len(t.Frames) > len(before.Frames)
}
