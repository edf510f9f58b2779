// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/internal/sorts"
)

// Identity is how a process of a job is called in a row.
type Identity struct {
	Rank int // -1: not known
	PID  int
}

// Part is what one process has of a row.
type Part struct {
	Process       int // index
	Name          string
	Source        string // the line's text; empty: not known
	Bytes, Blocks uint64
}

// Row is a line or a holder, over all processes of a job.
type Row struct {
	Part              // of all processes; Process is the first
	Share     float64 // of all rows
	Processes []int   // indices, without repetitions
	Which     string  // those in words: "all 8", "ranks 0-3, 6", "pids 12, 15"
}

// position is the number of an element in the name of a holder.
var position = regexp.MustCompile(`\[\d+(\.\.\d+)?\]`)

// Rows adds up what processes have of the same line or holder, the largest first. Holders whose names differ only
// in numbers of elements are the same: "losses[0..24]" of one rank is "losses[0..25]" of the next.
func Rows(parts []Part, all []Identity) []Row {
	index := map[string]int{}
	var out []Row
	sum := uint64(0)
	for _, p := range parts {
		folded := position.ReplaceAllString(p.Name, "[*]")
		at, ok := index[folded]
		if !ok {
			at = len(out)
			index[folded] = at
			out = append(out, Row{Part: Part{Process: p.Process, Name: p.Name, Source: p.Source}})
		}
		r := &out[at]
		if r.Name != p.Name {
			r.Name = folded
		}
		r.Bytes, r.Blocks = r.Bytes+p.Bytes, r.Blocks+p.Blocks
		if !slices.Contains(r.Processes, p.Process) {
			r.Processes = append(r.Processes, p.Process)
		}
		sum += p.Bytes
	}
	for i := range out {
		r := &out[i]
		r.Share = float64(r.Bytes) / float64(max(1, sum))
		r.Which = Which(r.Processes, all)
	}
	sorts.Func(out, func(x, y Row) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	return out
}

// Which names processes of a job, given by their indices: all of them, or their ranks, or their PIDs.
func Which(some []int, all []Identity) string {
	if len(some) == len(all) && len(all) > 1 {
		return fmt.Sprintf("all %d", len(all))
	}
	var ranks, pids []int
	for _, i := range some {
		if all[i].Rank < 0 {
			pids = append(pids, all[i].PID)
		} else {
			ranks = append(ranks, all[i].Rank)
		}
	}
	var parts []string
	for _, list := range []struct {
		name    string
		numbers []int
	}{{"rank", ranks}, {"pid", pids}} {
		switch len(list.numbers) {
		case 0:
		case 1:
			parts = append(parts, list.name+" "+strconv.Itoa(list.numbers[0]))
		default:
			parts = append(parts, list.name+"s "+spans(list.numbers))
		}
	}
	return strings.Join(parts, ", ")
}

// shownSpans is how many spans of numbers are written.
const shownSpans = 3

// spans writes numbers in order, neighbours as "0-3".
func spans(numbers []int) string {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	var out []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		if len(out) == shownSpans {
			return strings.Join(out, ", ") + fmt.Sprintf(" + %d", len(numbers)-i)
		}
		text := strconv.Itoa(numbers[i])
		if last > i {
			text += "-" + strconv.Itoa(numbers[last])
		}
		out = append(out, text)
		i = last + 1
	}
	return strings.Join(out, ", ")
}
