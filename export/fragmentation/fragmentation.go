// SPDX-License-Identifier: Apache-2.0

// Package fragmentation prints how fragmented a caching allocator is, by what, and what would help.
package fragmentation

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// Input is what Write prints.
type Input struct {
	Devices []whatif.Fragmentation
	Churn   *fragments.Churn
	Began   uint64 // of the recording, CLOCK_BOOTTIME nanoseconds
	Top     int    // rows of each table; 0: 5
	Width   int    // of the screen, characters; 0: it is not known
}

// Write prints how fragmented each device is, by what, and what would help.
func Write(w io.Writer, in *Input) error {
	out := bufio.NewWriter(w)
	p := &printer{layout.Printer{W: out, Width: in.Width}}
	for i := range in.Devices {
		p.fragmented(&in.Devices[i], in)
		p.Plain("")
	}
	p.field("churn", churnText(in.Churn))
	top := cmp.Or(in.Top, shown)
	for _, s := range in.Churn.Sites[:min(top, len(in.Churn.Sites))] {
		p.field("", fmt.Sprintf("%s %s, %s", table.Bytes(s.Bytes), words.Line(s.Site), table.Plural(s.Blocks, "block")))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the fragmentation: %w", err)
	}
	return nil
}

// shown is how many rows of a table are printed.
const shown = 5

// printer writes fields that may need several lines.
type printer struct{ layout.Printer }

func (p *printer) field(name, text string) { p.Field(name, "%s", words.Line(text)) }

// seconds is the time since the beginning of a recording.
func seconds(at, began uint64) float64 { return time.Duration(at - min(began, at)).Seconds() }

func (p *printer) fragmented(f *whatif.Fragmentation, in *Input) {
	p.Wrap(words.Line(fmt.Sprintf("pid %d %s at %+.3f s: %s", f.PID, f.Device, seconds(f.Time, in.Began), Sentence(f))), layout.FieldIndent)
	if !f.Device.Allocator().Simulated() {
		p.regions(f, in)
		return
	}
	p.field("reserved", fmt.Sprintf("%s: allocated %s, inactive split %s in %s, free segments %s", table.Bytes(f.Reserved),
		table.Bytes(f.Held), table.Bytes(f.Inactive),
		table.Plural(uint64(len(f.Stranded)), "segment"), table.Bytes(f.Free)))
	if f.Unknown > 0 {
		p.field("", fmt.Sprintf("%s in use lie in no known segment: the recording does not have all of the allocator", table.Bytes(f.Unknown)))
	}
	p.freePools(f)
	top := cmp.Or(in.Top, shown)
	for i := range f.Pins[:min(top, len(f.Pins))] {
		name := ""
		if i == 0 {
			name = "kept by"
		}
		p.field(name, pinRow(f, &f.Pins[i]))
	}
	p.field("cache", emptyText(f))
	p.field("library", workspacesText(f.Workspaces))
	p.helps(f, top)
}

// regions prints the rest for TensorFlow and JAX, whose allocator has one pool of regions, and whose settings are not simulated.
func (p *printer) regions(f *whatif.Fragmentation, in *Input) {
	p.field("reserved", fmt.Sprintf("%s: allocated %s, free %s in regions that are in use and %s in others; the "+
		"largest free piece has %s", table.Bytes(f.Reserved), table.Bytes(f.Held), table.Bytes(f.Inactive), table.Bytes(f.Free),
		table.Bytes(f.Largest)))
	for i := range f.Pins[:min(cmp.Or(in.Top, shown), len(f.Pins))] {
		name := ""
		if i == 0 {
			name = "beside"
		}
		p.field(name, pinRow(f, &f.Pins[i]))
	}
}

// freePools prints the free memory of each pool that has any.
func (p *printer) freePools(f *whatif.Fragmentation) {
	name := "free"
	for i := range f.Pools {
		q := &f.Pools[i]
		if q.Inactive+q.Free == 0 {
			continue
		}
		text := fmt.Sprintf("%s in %s", table.Bytes(q.Inactive+q.Free), fragmentPool(&q.Pool))
		if f.Request.Bytes > 0 && q.OfRequest {
			text += " (the request's)"
		}
		p.field(name, fmt.Sprintf("%s: %s of inactive splits, %s of free segments; largest %s", text, table.Bytes(q.Inactive),
			table.Bytes(q.Free), table.Bytes(q.Largest)))
		name = ""
	}
}

func fragmentPool(q *fragments.Pool) string {
	name := "the large pool"
	switch {
	case q.IsPrivate():
		name = "private pools"
	case q.Small:
		name = "the small pool"
	}
	if q.Stream == event.Unknown {
		return name + ", in segments without a block"
	}
	if q.Stream != 0 {
		name += fmt.Sprintf(" of stream %#x", q.Stream)
	}
	return name
}

func pinRow(f *whatif.Fragmentation, p *fragments.Pin) string {
	text := fmt.Sprintf("%s in %s by %s of %s (%s)", table.Bytes(p.Stranded), table.Plural(p.Segments, segmentName(f)),
		table.Plural(p.Blocks, "block"), words.Line(p.Site), table.Bytes(p.Bytes))
	if p.Holder != "" {
		text += ", held by " + words.Line(p.Holder)
	}
	if age := p.Age(f.Time); age != event.Unknown && age >= 1e9 {
		text += ", for up to " + table.Span(float64(age)/1e9)
	}
	return text
}

// segmentName is what the allocator's framework calls a segment.
func segmentName(f *whatif.Fragmentation) string {
	if f.Device.Allocator().Simulated() {
		return "segment"
	}
	return "region"
}

// Sentence is the sentence on the fragmentation of a device.
func Sentence(f *whatif.Fragmentation) string {
	share := 0.0
	if f.Reserved > 0 {
		share = 100 * float64(f.Fragmented) / float64(f.Reserved)
	}
	if !f.IsFragmented() {
		return fmt.Sprintf("not fragmented: of %s reserved, %s (%.0f %%) are free between blocks in use and cannot be used%s",
			table.Bytes(f.Reserved), table.Bytes(f.Fragmented), share,
			forRequest(f))
	}
	text := fmt.Sprintf("fragmented: of %s reserved, %s (%.0f %%) are free between blocks in use and cannot be used%s; the largest free "+
		"piece has %s", table.Bytes(f.Reserved),
		table.Bytes(f.Fragmented), share, forRequest(f), table.Bytes(f.Largest))
	if len(f.Pins) > 0 { // a segment can have blocks of several lines
		q := &f.Pins[0]
		text += fmt.Sprintf(". %s of them are in %ss that %s of %s, %s", table.Bytes(min(q.Stranded, f.Inactive)), segmentName(f),
			table.Plural(q.Blocks, "block"), words.Line(q.Site), table.Bytes(q.Bytes))
		if q.Holder != "" {
			text += ", held by " + words.Line(q.Holder)
		}
		if n := len(f.Pins) - 1; n > 0 {
			text += fmt.Sprintf(", and blocks of %s", table.Plural(uint64(n), "other line"))
		}
		text += " keep"
	}
	if f.Replays == nil {
		return text
	}
	if helps := f.Replays.Helps(); len(helps) > 0 {
		return text + ". " + helpText(f.Replays, &helps[0])
	}
	return text + ". No setting of the allocator that was replayed would have helped"
}

func forRequest(f *whatif.Fragmentation) string {
	if f.Request.Bytes == 0 {
		return " by a larger request"
	}
	return fmt.Sprintf(" by a request of %s", table.Bytes(f.Request.Bytes))
}

// helpText says what a setting would have done.
func helpText(r *whatif.Report, h *whatif.Help) string {
	sure := ", by a replay"
	if !r.Check.Exact() {
		sure = ", by a replay that is an estimate"
	}
	if h.GoesOn {
		return fmt.Sprintf("With %s no request fails, and %s are reserved at most%s", h.Conf(), table.Bytes(h.Peak), sure)
	}
	return fmt.Sprintf("With %s %s are reserved at most, not %s%s", h.Conf(), table.Bytes(h.Peak), table.Bytes(r.Rows[0].Peak), sure)
}

func emptyText(f *whatif.Fragmentation) string {
	text := fmt.Sprintf("empty_cache() would return %s now", table.Bytes(f.Returnable))
	switch r := f.Replays; {
	case r == nil:
	case r.Emptied == 0:
		text += "; the program did not call it"
	default:
		text += fmt.Sprintf("; the program called it %s, which returned %s, and %s of that were obtained from the driver again",
			table.Times(uint64(r.Emptied)), table.Bytes(r.Returned),
			table.Bytes(r.Regained))
	}
	return text
}

func workspacesText(all []fragments.Workspace) string {
	if len(all) == 0 {
		return "no workspace of cuBLAS or cuDNN in the allocator"
	}
	var parts []string
	for i := range all {
		w := &all[i]
		parts = append(parts, fmt.Sprintf("%s %s in %s", w.Library, table.Bytes(w.Bytes), table.Plural(w.Blocks, "block")))
	}
	return "workspaces: " + strings.Join(parts, ", ")
}

func (p *printer) helps(f *whatif.Fragmentation, top int) {
	if f.Replays == nil {
		p.field("helps", "not known: a replay of the requests does not give what PyTorch reserved, or not all blocks are known at any moment")
		return
	}
	helps := f.Replays.Helps()
	for i := range helps[:min(top, len(helps))] {
		name := ""
		if i == 0 {
			name = "helps"
		}
		p.field(name, helpText(f.Replays, &helps[i]))
	}
	if len(helps) == 0 {
		p.field("helps", "no setting of the allocator that was replayed: see gputrace whatif")
	}
}

func churnText(c *fragments.Churn) string {
	if math.IsNaN(c.PerStep) {
		return fmt.Sprintf("%s of blocks that were freed in the phase in which they were allocated, of %s allocated in all; no steps "+
			"were found", table.Bytes(c.Bytes), table.Bytes(c.Allocated))
	}
	return fmt.Sprintf("%s a step of blocks that are freed in the phase in which they were allocated, %s in step %d; of all that was "+
		"allocated, %s, they are %s", table.Bytes(uint64(c.PerStep)),
		table.Bytes(c.Most), c.MostAt, table.Bytes(c.Allocated), table.Bytes(c.Bytes))
}
