// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
)

// CachedText says how much of the reserved memory the program does not use.
func CachedText(c *answer.Cached) string {
	text := fmt.Sprintf("%s of %s reserved is free, even at the latest peak of %s", Bytes(c.Bytes), Bytes(c.Reserved), Bytes(c.Used))
	if c.Largest != event.Unknown {
		text += fmt.Sprintf(" (largest piece %s)", Bytes(c.Largest))
	}
	text += ": gputrace whatif compares settings of the allocator"
	return text
}

// WaitingText says how much memory waits for another stream. begin is when the recording began, CLOCK_BOOTTIME nanoseconds.
func WaitingText(w *answer.Waiting, begin uint64) string {
	return fmt.Sprintf("%s for another stream at %s: freed by the program, but in use by work of a stream named to record_stream()", Bytes(w.Bytes), Offset(w.Time, begin))
}

// RetriedText says how many requests were refused first, and what that cost.
func RetriedText(r *answer.Retried) string {
	text := Plural(uint64(r.Count), "request") + " " + were(r.Count) + " refused and recovered: PyTorch returned its cache to the driver and asked again"
	if r.Slower > 0 {
		text += fmt.Sprintf("; steps with one took %.1f times as long (%s instead of %s)", r.Slower, Duration(time.Duration(r.With)), Duration(time.Duration(r.Without)))
	}
	return text
}

func were(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}
