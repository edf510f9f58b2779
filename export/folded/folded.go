// SPDX-License-Identifier: Apache-2.0

// Package folded writes stacks as lines of "frame;frame;frame bytes", outermost first: what flamegraph.pl, inferno, speedscope
// and Perfetto read, and what line tools can sort and add up. It also draws them as a flame graph.
package folded

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/words"
)

// Write writes what is in use in a view, a line for each stack, in the order of their text. The bytes add up to View.Total and
// View.Overdrawn: the format has no negative numbers.
func Write(w io.Writer, v *view.View) error {
	lines := stacks(v)
	out := bufio.NewWriter(w)
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		out.WriteString(line)
		out.WriteByte(' ')
		out.WriteString(strconv.FormatInt(lines[line], 10))
		out.WriteByte('\n')
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write stacks: %w", err)
	}
	return nil
}

// stacks returns the bytes in use by stack, which is the text of its line.
func stacks(v *view.View) map[string]int64 {
	out := map[string]int64{}
	for p := range v.Samples(view.InUse, nil) {
		if p.Bytes > 0 {
			out[stack(&p)] += p.Bytes
		}
	}
	return out
}

// stack is a portion's frames, outermost first.
func stack(p *view.Sample) string {
	labels := p.Labels()
	names := make([]string, 0, len(labels))
	for i := len(labels) - 1; i >= 0; i-- {
		names = append(names, frameText(labels[i].Text))
	}
	return strings.Join(names, ";")
}

// frameText replaces what would end a frame or a line; a semicolon becomes a colon, as stackcollapse-*.pl do.
func frameText(name string) string { return strings.ReplaceAll(words.Line(name), ";", ":") }
