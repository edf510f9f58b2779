// SPDX-License-Identifier: Apache-2.0

// Package notice writes the events of a recording for people, and what an attach found.
package notice

import (
	"fmt"

	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/size"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// Lines returns an event in lines for a terminal; none for one that only programs need. many reports whether there may be more than
// one process, so that each must be named.
func Lines(e recorder.Event, many bool) []string {
	switch e := e.(type) {
	case *recorder.Finding:
		text := finding(e)
		if many {
			text = e.Process.Who() + ": " + text
		}
		return []string{"  " + text}
	case *recorder.OutOfMemory:
		text := fmt.Sprintf("  out of memory: a request for %s failed", size.Text(e.Bytes))
		if e.Kept != "" {
			text += "; " + e.Kept + "/ has the recording up to here"
		}
		return []string{text}
	case *recorder.Survived:
		return []string{"  the program has caught that and goes on; so does the recording"}
	case *recorder.Alert:
		var out []string
		for _, line := range table.AlertLines(e.Alert) {
			out = append(out, "  "+line)
		}
		return out
	case *recorder.Comparison:
		return []string{comparison(e.Outcome)}
	case *recorder.HoldersUnread:
		return []string{fmt.Sprintf("who holds the live blocks could not be read: %v", e.Err)}
	case *recorder.Unused:
		return []string{e.Process.Who() + " used no GPU memory"}
	case *recorder.Ending:
		text := fmt.Sprintf("  recorded %.1f s", e.Recorded.Seconds())
		if e.Reading {
			text += ": reading who holds the blocks, Ctrl-C skips"
		}
		return []string{text}
	}
	return nil
}

// finding returns the news about growth.
func finding(e *recorder.Finding) string {
	switch e.News {
	case recorder.HeldBy:
		return "held by  " + table.LeakHolder(&e.Leak)
	case recorder.FullIn:
		return "full in  " + table.LeakLimit(&e.Leak)
	case recorder.Further:
		return "growing: more lines, which the report names"
	case recorder.Withdrawn:
		return fmt.Sprintf("no longer growing: %s, as of step %d", e.Leak.Name(), e.Step)
	}
	return "growing: " + table.LeakText(&e.Leak)
}

// comparison returns the outcome of a comparison.
func comparison(o *reconcile.Outcome) string {
	switch {
	case o.Err != nil:
		return fmt.Sprintf("the live set could not be compared with the allocator state: %v", o.Err)
	case o.Corrected != nil:
		return "  events were lost; the allocator state put the live set right: " + reconcile.Difference(o.Corrected)
	}
	return fmt.Sprintf("live = allocator state: %d blocks compared", o.Blocks)
}
