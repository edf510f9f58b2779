// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"strings"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/words"
)

// Text is a stack in one line, outermost frame first, frames separated by "; ": what VisibleFrames shows of it.
func Text(st *event.Stack) string {
	if st == nil {
		return ""
	}
	frames := VisibleFrames(st)
	return Join(len(frames), func(i int) string { return FrameName(&frames[i]) })
}

// Join is a stack in one line, of calls that are given leaf first: outermost first, separated by "; ".
func Join(n int, text func(int) string) string {
	names := make([]string, n)
	for i := range n {
		names[n-1-i] = strings.ReplaceAll(words.Line(text(i)), ";", ",")
	}
	return strings.Join(names, "; ")
}
