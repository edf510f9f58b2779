// SPDX-License-Identifier: Apache-2.0

//go:build linux

package table

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// DumpInput is what Dump prints.
type DumpInput struct {
	State   *allocator.State
	PID     int
	Command string    // of the program; empty: not known
	Paused  string    // as process.Pause.After: what follows the command
	Boot    time.Time // when CLOCK_BOOTTIME was 0; times are printed in its location
	Top     int       // segments listed of each device; 0: 10
	Width   int       // of the screen, characters; 0: 80
	// Balance has the driver's figures; nil: it was not asked.
	Balance *balance.Process
	// Holders name the blocks; nil: they are not known, for the reason that HoldersWhy says, or were not asked for.
	Holders    *holders.Index
	HoldersWhy string
	Frameworks string   // with a BFC allocator, such as "JAX 0.10.2"; empty: none
	Notes      []string // about what is missing
}

const (
	// shownInactiveSplits is how many free blocks of a segment are listed one by one.
	shownInactiveSplits = 3
	// shownPins is how many blocks that keep a segment are listed one by one.
	shownPins = 3
)

// Dump prints the caching allocator's map: for each device where every byte is, as the driver counts, what changed while it was
// read, the reserved bytes by pool, the segments with the most free bytes, their inactive splits and what pins them, and the
// inactive splits by size.
func Dump(w io.Writer, in DumpInput) error {
	if in.Top == 0 {
		in.Top = defaultTop
	}
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
	whose := "the caching allocator's map"
	if in.onlyBFC() {
		whose = "the allocator's map · " + cmp.Or(words.Line(in.Frameworks), "BFC")
	}
	p.line("pid %d %s%s · %s", in.PID, in.Command, in.Paused, whose)
	if len(in.State.Devices) == 0 {
		p.line("")
		p.line("no device: CUDA is not initialised")
	}
	for i := range in.State.Devices {
		if d := &in.State.Devices[i]; isBFC(d) {
			p.dumpBFC(d, &in)
		} else {
			p.dumpDevice(d, &in)
		}
	}
	p.dumpNotes(&in)
	for i, n := range in.Notes {
		if i == 0 {
			p.line("")
		}
		p.field("note", "%s", words.Line(n))
	}
	if in.HoldersWhy != "" {
		p.line("")
		p.field("names", "what holds the blocks is not known: %s", words.Line(in.HoldersWhy))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the map: %w", err)
	}
	return nil
}

func (p *printer) dumpDevice(d *allocator.DeviceState, in *DumpInput) {
	p.line("")
	b := in.balance(d.Counted.Device)
	title := fmt.Sprintf("cuda:%d at %s", d.Counted.Device, in.Boot.Add(time.Duration(d.Time)).Format("15:04:05.000"))
	if b != nil {
		title = strings.TrimSpace(title + "  " + words.Line(b.Driver.Name+" "+b.Driver.UUID))
	}
	p.line("%s", title)
	if d.Reserved == 0 && d.Counted.Reserved == 0 {
		p.line("  nothing is reserved")
		p.dumpUsed(b)
		return
	}
	p.dumpUsed(b)
	p.dumpParts(d)
	p.dumpPools(d)
	most, all := d.MostFree(in.Top)
	p.dumpSegments(d, most, all)
	p.inactiveSplits(d.MostSplit(in.Top), in.Holders, "segments with the most in inactive splits, and the blocks that pin them", "pinned")
	p.dumpClasses(d.InactiveByPool())
}

// balance is the balance of a device, by its number; nil when there is none.
func (in *DumpInput) balance(device int) *balance.Device {
	if in.Balance == nil {
		return nil
	}
	for i := range in.Balance.Devices {
		if d := &in.Balance.Devices[i]; int(d.Device.Index) == device {
			return d
		}
	}
	return nil
}

// dumpUsed prints what the driver counts, and how much of it is not the caching allocator's.
func (p *printer) dumpUsed(b *balance.Device) {
	if b == nil {
		return
	}
	if b.Used == event.Unknown {
		p.line("  %-14s %10s %21s  %s", "device", "unknown", "", words.Line(b.Why))
		return
	}
	p.line("  %-14s %10s %21s  %s", "device", Bytes(b.Used), bytesText(b.Used), usedText(b))
	rest, _ := b.Remainder()
	p.line("  %-14s %10s %21s  %s", restName(b), signedText(rest), signedCount(rest)+" B", restText(b))
}

// dumpNotes prints what belongs to no device, and why the driver's figures are missing.
func (p *printer) dumpNotes(in *DumpInput) {
	d := in.balance(-1)
	if in.Balance == nil || d == nil && !hasNotes(in.Balance) {
		return
	}
	p.line("")
	if d != nil {
		p.field("device", "%s on %s, whose number is not known", exactText(d.Used), words.Line(d.Driver.Name+" "+d.Driver.UUID))
	}
	p.balanceNotes(in.Balance)
}

// dumpParts says where every reserved byte is, and that they add up to what the allocator counts by itself.
func (p *printer) dumpParts(d *allocator.DeviceState) {
	part := func(name string, bytes uint64, format string, args ...any) {
		p.line("%s", partLine(name, Bytes(bytes), bytesText(bytes), fmt.Sprintf(format, args...)))
	}
	part("allocated", d.Allocated, "in %s", Plural(d.AllocatedCount, "block"))
	part("  requested", d.Requested, "of it, as the program asked")
	part("  rounding", d.Rounding(), "of it, added by the allocator")
	part("pending", d.Pending, "in %s, freed but waiting for another stream", Plural(d.PendingCount, "block"))
	part("inactive split", d.InactiveSplit, "in %s of segments that are in use, the largest %s", Plural(d.InactiveSplitCount, "free block"),
		Bytes(d.LargestInactiveSplit))
	part("free", d.Free, "in %s without a block in use", Plural(d.FreeSegmentCount, "segment"))
	if d.Changing == nil {
		part("reserved", d.Reserved, "in %s", Plural(d.SegmentCount, "segment"))
		p.line("  balance        allocated + pending + inactive split + free - reserved as counted by the allocator = %s B",
			signedCount(-d.Unexplained()))
	} else {
		p.dumpChanging(d, part)
	}
	if n := d.Miscounted(); n != 0 {
		p.line("  balance        blocks - allocated as counted by the allocator = %s B", signedCount(-n))
	}
}

// partLine is a part of the reserved memory: its size in a unit, to the byte, and what it is.
func partLine(name, bytes, exact, text string) string {
	return fmt.Sprintf("  %-14s %10s %21s  %s", name, bytes, exact, text)
}

// dumpChanging says what did not stand still while it was read, and what the allocator itself counted at one instant meanwhile.
func (p *printer) dumpChanging(d *allocator.DeviceState, part func(string, uint64, string, ...any)) {
	p.changingParts(d, part)
	part("reserved", d.Reserved, "in %s", Plural(d.SegmentCount, "segment"))
	p.line("  balance        allocated + pending + inactive split + free + changing - reserved as counted by the allocator = %s B",
		signedCount(-d.Unexplained()))
	p.line("  counted        by the allocator at that instant: allocated %s, active %s, reserved %s", bytesText(d.Counted.Allocated),
		bytesText(d.Active), bytesText(d.Counted.Reserved))
}

// changingParts lists the memory that did not stand still, and how much of it was in use.
func (p *printer) changingParts(d *allocator.DeviceState, part func(string, uint64, string, ...any)) {
	c := d.Changing
	part("changing", d.ChangingBytes, "in %s whose blocks changed while they were read", Plural(uint64(c.Ranges), "part"))
	p.line("%s", partLine("  in use", rangeText(c.BytesLow, c.BytesHigh, Bytes), rangeText(c.BytesLow, c.BytesHigh, bytesText),
		"in "+blockRange(c.BlocksLow, c.BlocksHigh)))
}

// rangeText is a figure between two bounds.
func rangeText(low, high uint64, text func(uint64) string) string {
	if low == high {
		return text(low)
	}
	return text(low) + " to " + text(high)
}

func blockRange(low, high uint64) string {
	if low == high {
		return Plural(low, "block")
	}
	return countText(low) + " to " + Plural(high, "block")
}

func poolText(small bool, id [2]uint64) string {
	kind := "large"
	if small {
		kind = "small"
	}
	if id == [2]uint64{} {
		return kind
	}
	return fmt.Sprintf("%s, private (%d, %d)", kind, id[0], id[1])
}

func (p *printer) dumpPools(d *allocator.DeviceState) {
	p.line("")
	var rows [][]string
	for i := range d.Pools {
		m := &d.Pools[i]
		rows = append(rows, []string{
			poolText(m.Pool.Small, m.Pool.ID), countText(m.SegmentCount), Bytes(m.Reserved), Bytes(m.Allocated), Bytes(m.Pending),
			Bytes(m.InactiveSplit), Bytes(m.LargestInactiveSplit), Bytes(m.Free),
		})
	}
	p.Grid([]string{"pool", "segments", "reserved", "allocated", "pending", "inactive split", "largest split", "free"}, rows, 1)
}

func (p *printer) dumpSegments(d *allocator.DeviceState, most []allocator.SegmentState, all int) {
	if all == 0 {
		return
	}
	p.line("")
	var rows [][]string
	for i := range most {
		s := &most[i]
		largest := Bytes(s.LargestInactiveSplit)
		if s.FreeSegmentCount > 0 {
			largest = "whole"
		}
		rows = append(rows, []string{
			fmt.Sprintf("%#x", s.Addr), poolText(s.Pool.Small, s.Pool.ID), Bytes(s.Size), streamText(s.Stream), Bytes(s.Allocated),
			Bytes(s.Pending), Bytes(s.FreeBytes()), largest,
		})
	}
	p.Grid([]string{"segment", "pool", "size", "stream", "allocated", "pending", "free", "largest split"}, rows, 2)
	p.dumpRest(d, most, all, "segment")
}

// dumpRest counts the segments, or regions, that are not listed.
func (p *printer) dumpRest(d *allocator.DeviceState, most []allocator.SegmentState, all int, name string) {
	free := d.InactiveSplit + d.Free
	for i := range most {
		free -= most[i].FreeBytes()
	}
	if more := all - len(most); more > 0 {
		p.line("  and %s with %s free", Plural(uint64(more), "more "+name), Bytes(free))
	}
	if full := d.SegmentCount - uint64(all); full > 0 {
		p.line("  and %s without a free byte", Plural(full, name))
	}
}

// streamText is a stream's handle; the default stream has none.
func streamText(stream uint64) string {
	if stream == 0 {
		return "default"
	}
	return fmt.Sprintf("%#x", stream)
}

// inactiveSplits lists, for the segments with most bytes in inactive splits, the free blocks and what keeps the segment.
func (p *printer) inactiveSplits(most []allocator.SegmentState, h *holders.Index, title, held string) {
	titled := false
	for i := range most {
		s := &most[i]
		if s.InactiveSplitCount == 0 {
			continue
		}
		if !titled {
			p.line("")
			p.line("  %s", title)
			titled = true
		}
		p.line("  %#x %s: %s in %s", s.Addr, Bytes(s.Size), Bytes(s.InactiveSplit), Plural(s.InactiveSplitCount, "free block"))
		p.line("    free    %s", blockTexts(s, s.FreeBlocks(), shownInactiveSplits))
		p.line("    %-7s %s", held, blockTexts(s, s.Pins(), shownPins))
		p.dumpPinners(s.Pins(), h)
	}
}

// dumpPinners names what holds the blocks that pin a segment.
func (p *printer) dumpPinners(pins []allocator.Block, h *holders.Index) {
	if h == nil {
		return
	}
	for i := range pins[:min(shownPins, len(pins))] {
		if n, ok := h.Find(&pins[i]); ok {
			p.line("      by    %#x %s", pins[i].Addr, strings.TrimRight(layout.FitHolder(h.Report.Blocks[n].Name(), p.Columns()-widthPinner), " "))
		}
	}
}

// widthPinner is what is before a holder's name: an address of at most 48 bits, characters.
const widthPinner = 27

// blockTexts lists the first of a segment's blocks, and counts the rest.
func blockTexts(s *allocator.SegmentState, blocks []allocator.Block, n int) string {
	var out []string
	for i := range blocks[:min(n, len(blocks))] {
		b := &blocks[i]
		text := fmt.Sprintf("%#x %s", b.Addr, Bytes(b.Size))
		if b.Stream != s.Stream {
			text += " of stream " + streamText(b.Stream)
		}
		if allocator.Pending(b) {
			text += " pending"
		}
		out = append(out, text)
	}
	if more := len(blocks) - n; more > 0 {
		out = append(out, countText(uint64(more))+" more")
	}
	return strings.Join(out, ", ")
}

// dumpClasses lists all inactive splits by size. A request is served from one free block of its pool and stream.
func (p *printer) dumpClasses(splits []allocator.InactiveSplits) {
	if len(splits) == 0 {
		return
	}
	p.line("")
	var rows [][]string
	for i := range splits {
		h := &splits[i]
		pool, stream := poolText(h.Pool.Small, h.Pool.ID), streamText(h.Stream)
		for _, c := range h.Classes {
			rows = append(rows, []string{pool, fmt.Sprintf("%s to %s", Bytes(c.From), Bytes(c.Below)), stream, countText(c.Count), Bytes(c.Bytes),
				Bytes(c.Largest)})
		}
	}
	p.Grid([]string{"inactive splits of", "size", "stream", "blocks", "bytes", "largest split"}, rows, 2)
}
