// SPDX-License-Identifier: Apache-2.0

//go:build linux

package table

import (
	"fmt"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/internal/words"
)

// isBFC reports whether a device's memory is of an allocator of TensorFlow or JAX.
func isBFC(d *allocator.DeviceState) bool { return d.Name != "" }

// onlyBFC reports whether no memory is PyTorch's.
func (in *DumpInput) onlyBFC() bool {
	for i := range in.State.Devices {
		if !isBFC(&in.State.Devices[i]) {
			return false
		}
	}
	return len(in.State.Devices) > 0
}

// placeText is where an allocator's memory is.
func placeText(host bool, device int) string {
	if host {
		return "host memory"
	}
	return fmt.Sprintf("cuda:%d", device)
}

// dumpBFC prints the map of an allocator of TensorFlow or JAX: regions divided into blocks.
func (p *printer) dumpBFC(d *allocator.DeviceState, in *DumpInput) {
	p.line("")
	title := fmt.Sprintf("%s, allocator %s, at %s", placeText(d.Host, d.Counted.Device), words.Line(d.Name),
		in.Boot.Add(time.Duration(d.Time)).Format("15:04:05.000"))
	b := in.balance(d.Counted.Device)
	if d.Host {
		b = nil
	}
	if b != nil {
		title = strings.TrimSpace(title + "  " + words.Line(b.Driver.Name+" "+b.Driver.UUID))
	}
	p.line("%s", title)
	p.dumpUsed(b)
	if d.Reserved == 0 {
		p.line("  it has no memory")
		return
	}
	p.dumpBFCParts(d)
	most, all := d.MostFree(in.Top)
	p.dumpRegions(d, most, all)
	p.inactiveSplits(d.MostSplit(in.Top), in.Holders, "regions with the most free memory that are in use, and their blocks", "in use")
	p.dumpFreeBlocks(d.InactiveByPool())
}

func (p *printer) dumpBFCParts(d *allocator.DeviceState) {
	part := func(name string, bytes uint64, format string, args ...any) {
		p.line("%s", partLine(name, Bytes(bytes), bytesText(bytes), fmt.Sprintf(format, args...)))
	}
	part("allocated", d.Allocated, "in %s", Plural(d.AllocatedCount, "block"))
	part("  requested", d.Requested, "of it, as the program asked")
	part("  rounding", d.Rounding(), "of it, added by the allocator")
	free, largest := d.InactiveSplit+d.Free, d.LargestFree()
	part("free", free, "in %s, the largest %s", Plural(d.InactiveSplitCount+d.FreeSegmentCount, "block"), Bytes(largest))
	part("  fragmented", free-largest, "of it, outside the largest block")
	sum := "allocated + free"
	if d.Changing != nil {
		p.changingParts(d, part)
		sum += " + changing"
	}
	part("reserved", d.Reserved, "in %s", Plural(d.SegmentCount, "region"))
	p.line("  balance        %s - reserved = %s B", sum, signedCount(-d.Unexplained()))
	if d.Changing != nil {
		p.line("  balance        allocated + changing in use - in use as counted by the allocator = %s B",
			signedCount(int64(d.Allocated+d.Changing.BytesLow-d.Counted.Allocated)))
		return
	}
	p.line("  balance        allocated - in use as counted by the allocator = %s B", signedCount(-d.Miscounted()))
}

func (p *printer) dumpRegions(d *allocator.DeviceState, most []allocator.SegmentState, all int) {
	if all == 0 {
		return
	}
	p.line("")
	var rows [][]string
	for i := range most {
		s := &most[i]
		rows = append(rows, []string{
			fmt.Sprintf("%#x", s.Addr), Bytes(s.Size), Bytes(s.Allocated), countText(s.AllocatedCount), Bytes(s.FreeBytes()),
			Bytes(max(s.LargestInactiveSplit, s.Free)),
		})
	}
	p.Grid([]string{"region", "size", "allocated", "blocks", "free", "largest free"}, rows, 1)
	p.dumpRest(d, most, all, "region")
}

// dumpFreeBlocks lists the free blocks between others by size.
func (p *printer) dumpFreeBlocks(splits []allocator.InactiveSplits) {
	var rows [][]string
	for i := range splits {
		for _, c := range splits[i].Classes {
			rows = append(rows, []string{fmt.Sprintf("%s to %s", Bytes(c.From), Bytes(c.Below)), countText(c.Count), Bytes(c.Bytes),
				Bytes(c.Largest)})
		}
	}
	if len(rows) > 0 {
		p.line("")
		p.Grid([]string{"free blocks of", "blocks", "bytes", "largest"}, rows, 1)
	}
}
