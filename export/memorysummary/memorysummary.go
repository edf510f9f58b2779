// SPDX-License-Identifier: Apache-2.0

// Package memorysummary writes statistics of a caching allocator in the layout of torch.cuda.memory_summary().
package memorysummary

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/gputrace/gputrace/event/figures"
)

// The rows of torch.cuda.memory_summary(), in its order.
var summaryRows = []struct {
	stat  int
	title string
	write func(n, by figures.Bytes) string
}{
	{figures.StatAllocatedBytes, "Allocated memory", summarySize},
	{figures.StatActiveBytes, "Active memory", summarySize},
	{figures.StatRequestedBytes, "Requested memory", summarySize},
	{figures.StatReservedBytes, "GPU reserved memory", summarySize},
	{figures.StatInactiveSplitBytes, "Non-releasable memory", summarySize},
	{figures.StatAllocation, "Allocations", summaryCount},
	{figures.StatActive, "Active allocs", summaryCount},
	{figures.StatSegment, "GPU reserved segments", summaryCount},
	{figures.StatInactiveSplit, "Non-releasable allocs", summaryCount},
}

// The lines between the rows of a summary.
const (
	summaryWidth  = 75
	summaryTitle  = "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  "
	summaryAbsent = "unknown"
)

// Write prints statistics of a device in the layout of torch.cuda.memory_summary(); what is not known is "unknown".
func Write(w io.Writer, s *figures.MemoryStats) error {
	out := bufio.NewWriter(w)
	row := func(text string) { fmt.Fprintf(out, "|%s|\n", text) }
	rule := func(c string) { row(strings.Repeat(c, summaryWidth)) }
	rule("=")
	backend, retries := "CUDA", "cudaMalloc retries:"
	if s.Type.MPS() { // whose PyTorch prints no such table
		backend, retries = "MPS", "retries:"
	}
	row(fmt.Sprintf(" %-16s PyTorch %-4s memory summary, device ID %-17d ", "", backend, s.Device))
	rule("-")
	row(fmt.Sprintf("  %-9s %-4s OOMs: %-12s | %-6s %-19s %-8s  ", "", backend, plainCount(s.OOMs), "", retries, plainCount(s.Retries)))
	rule("=")
	row(summaryTitle)
	for i := range summaryRows {
		r := &summaryRows[i]
		rule("-")
		p := &s.Stats[r.stat]
		row(counterRow(r.title, &p.All, &p.All, r.write))
		row(counterRow("      from large pool", &p.Large, &p.All, r.write))
		row(counterRow("      from small pool", &p.Small, &p.All, r.write))
	}
	rule("-")
	row(counterRow("Oversize allocations", &s.OversizeAllocations, &s.OversizeAllocations, summaryCount))
	rule("-")
	row(counterRow("Oversize GPU segments", &s.OversizeSegments, &s.OversizeSegments, summaryCount))
	rule("=")
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the summary: %w", err)
	}
	return nil
}

// counterRow is a row, in the units that suit the figures of by.
func counterRow(title string, c, by *figures.Counter, write func(n, by figures.Bytes) string) string {
	return fmt.Sprintf(" %-21s | %s | %s | %s | %s ", title,
		write(c.Current, by.Current), write(c.Peak, by.Peak), write(c.Allocated, by.Allocated), write(c.Freed, by.Freed))
}

func plainCount(n figures.Bytes) string {
	if n == figures.Unknown {
		return summaryAbsent
	}
	return fmt.Sprint(uint64(n))
}

// summarySize is a size as PyTorch writes it: in the largest unit in which by has more than three digits.
func summarySize(n, by figures.Bytes) string {
	if n == figures.Unknown || by == figures.Unknown {
		return fmt.Sprintf("%10s", summaryAbsent)
	}
	units := []string{"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"}
	unit, size := 0, float64(by)
	for unit < len(units)-1 && size >= 768*1024 {
		n, size, unit = n/1024, size/1024, unit+1
	}
	return fmt.Sprintf("%6d %s", uint64(n), units[unit])
}

// summaryCount is a number as PyTorch writes it.
func summaryCount(n, by figures.Bytes) string {
	if n == figures.Unknown || by == figures.Unknown {
		return fmt.Sprintf("%10s", summaryAbsent)
	}
	units := []string{" ", "K", "M"}
	unit, size := 0, float64(by)
	for unit < len(units)-1 && size >= 750*1000 {
		n, size, unit = n/1000, size/1000, unit+1
	}
	return fmt.Sprintf("%7d %s ", uint64(n), units[unit])
}
