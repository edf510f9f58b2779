// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// OOMInput is what OOM prints.
type OOMInput struct {
	Report *oom.Report
	Why    func(*oom.Case) string // the decision in a sentence
	Began  uint64                 // of the recording, CLOCK_BOOTTIME nanoseconds
	Top    int                    // rows of live blocks; 0: 5
	Width  int                    // of the screen, characters; 0: it is not known
}

// shownOOM is how many rows of live blocks are printed.
const shownOOM = 5

// OOM prints each request that failed, and why.
func OOM(w io.Writer, in *OOMInput) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
	cases := in.Report.Cases
	for i := 0; i < len(cases); {
		if i > 0 {
			p.line("")
		}
		p.oomCase(&cases[i], in)
		last := i
		for last+1 < len(cases) && alike(&cases[i], &cases[last+1]) {
			last++
		}
		if n := last - i; n > 0 {
			c := &cases[last]
			p.leakField("again", fmt.Sprintf("%s of the same line and for the same reason, the last at %+.3f s%s: --json lists them",
				Plural(uint64(n), "failure"), since(c.Time, in.Began),
				caughtText(c)))
		}
		i = last + 1
	}
	p.oomEnd(in.Report)
	return flushed(out)
}

// alike reports whether a request failed as the one before did: of its line, for its reason, with the same outcome.
func alike(x, y *oom.Case) bool {
	return x.PID == y.PID && x.Device == y.Device && x.Site == y.Site && x.Decision == y.Decision && x.Caught == y.Caught
}

// since is seconds since the beginning of a recording.
func since(at, began uint64) float64 { return time.Duration(at - min(began, at)).Seconds() }

func (p *printer) oomEnd(r *oom.Report) {
	if len(r.Cases) == 0 {
		p.line("no request for memory failed")
	}
	if r.Silent {
		p.leakText("", silentText)
	}
	if r.More > 0 {
		p.line("\n%s failed too", Plural(uint64(r.More), "further request"))
	}
	if r.Recovered > 0 {
		p.leakText("", fmt.Sprintf("recovered: the driver refused memory %s, and the request was satisfied after cached memory was returned, "+
			"or by asking again: "+
			"nothing ran out", Times(uint64(r.Recovered))))
	}
}

// silentText is said of a recording without a report of PyTorch's caching allocator.
const silentText = "PyTorch's caching allocator reported nothing: with the backend cudaMallocAsync, or none of its own, what PyTorch " +
	"refuses by itself is not seen"

func (p *printer) oomHead(c *oom.Case, began uint64) {
	p.leakText("", OOMHead(c, began))
}

// OOMHead says what failed where and when.
func OOMHead(c *oom.Case, began uint64) string {
	at := []string{fmt.Sprintf("%+.3f s", since(c.Time, began))}
	if c.Step > 0 {
		at = append(at, fmt.Sprintf("step %d", c.Step))
	}
	if c.Phase != phases.Unknown && c.Phase != phases.Other {
		at = append(at, string(c.Phase))
	}
	return fmt.Sprintf("OUT OF MEMORY  pid %d %s at %s%s", c.PID, c.Device, strings.Join(at, ", "), caughtText(c))
}

func caughtText(c *oom.Case) string {
	switch {
	case c.Exit != nil && c.Caught == oom.Yes:
		return ": caught, the program ended by itself with status 0"
	case c.Caught == oom.Yes:
		return ": caught, the program went on"
	case c.Caught == oom.No:
		return ""
	}
	return "; it is not known whether the program caught it"
}

func (p *printer) oomCase(c *oom.Case, in *OOMInput) {
	p.oomHead(c, in.Began)
	p.leakField("asked", askedText(c))
	p.leakField("why", in.Why(c))
	p.leakField("torch", torchText(c))
	p.leakField("device", OOMDevice(c, in.Began))
	p.leakField("free", freeText(c))
	for i := range c.Pins {
		if c.Decision == oom.Fragmentation || i == 0 && c.Pieces >= c.Requested {
			p.leakField("", pinText(&c.Pins[i]))
		}
	}
	p.leakField("course", courseText(c))
	p.oomTop(c, cmp.Or(in.Top, shownOOM))
	switch {
	case c.HeldAt == 0 && c.Caught == oom.No:
		p.leakField("", "holders unknown: the program ended before they were read")
	case c.HeldAt == 0:
		p.leakField("", "holders unknown: they were not read in time")
	default:
		p.leakField("", fmt.Sprintf("holders as read at %+.3f s", (time.Duration(c.HeldAt)-time.Duration(in.Began)).Seconds()))
	}
}

func (p *printer) oomTop(c *oom.Case, n int) {
	for i := range c.Top[:min(n, len(c.Top))] {
		r := &c.Top[i]
		name := "holds"
		if i > 0 {
			name = ""
		}
		text := fmt.Sprintf("%-10s %s", Bytes(r.Bytes), words.Line(r.Site))
		if r.Holder != view.NoHolder {
			text += ", held by " + words.Line(varpath.Readable(r.Holder))
		}
		if r.Category != phases.NoCategory {
			text += fmt.Sprintf(" (%s)", CategoryText(r.Category))
		}
		p.leakField(name, fmt.Sprintf("%s, %s", text, Plural(r.Objects, "block")))
	}
}

// CategoryText is a category in words.
func CategoryText(c phases.Category) string { return strings.ReplaceAll(string(c), "_", " ") }

func askedText(c *oom.Case) string {
	text := fmt.Sprintf("%s by %s", exactText(c.Requested), words.Line(c.Site))
	switch {
	case c.Own:
		text += fmt.Sprintf(", by %s, which the driver refused %s", c.Call, Times(uint64(c.Tries)))
	case !c.Reported:
		text += fmt.Sprintf(", by %s, which the driver refused", cmp.Or(c.Call, "a call"))
	case c.Tries == 0:
		text += "; PyTorch did not ask " + driverName(c) + " for it"
	case c.Page > 0:
		text += fmt.Sprintf("; the driver refused a page of %s, of %s of them, %s", Bytes(c.Page), Bytes(c.Asked), Times(uint64(c.Tries)))
	default:
		text += fmt.Sprintf("; the driver refused a segment of %s %s", Bytes(c.Asked), Times(uint64(c.Tries)))
	}
	if c.Flushed > 0 {
		text += fmt.Sprintf(", also after PyTorch had returned %s of its cache", Bytes(c.Flushed))
	}
	return text
}

// driverName names the driver that PyTorch allocates from.
func driverName(c *oom.Case) string {
	if c.Device.Type.MPS() {
		return "Metal"
	}
	return "the driver"
}

func torchText(c *oom.Case) string {
	t := &c.Torch
	if c.Async {
		return fmt.Sprintf("allocated %s; what the pool of its backend cudaMallocAsync keeps beside that counts as context",
			exactText(t.Allocated))
	}
	text := fmt.Sprintf("allocated %s (requested %s, rounding %s), reserved %s", exactText(t.Allocated), Bytes(t.Requested),
		Bytes(t.Rounding()), exactText(t.Reserved))
	return text + fmt.Sprintf(": inactive split %s, free segments %s", Bytes(t.InactiveSplit), Bytes(t.Free))
}

// OOMDevice is how a device was used when a request failed.
func OOMDevice(c *oom.Case, began uint64) string {
	var parts []string
	for i := range c.Owners {
		parts = append(parts, fmt.Sprintf("%s %s", c.Owners[i].Name, Bytes(c.Owners[i].Bytes)))
	}
	if c.Device.Type.MPS() { // of unified memory there is no figure of what is free
		parts = append(parts, "untracked "+Bytes(c.Context))
		return fmt.Sprintf("%s recommended at most: PyTorch %s, %s", Bytes(c.Total), Bytes(c.Torch.Reserved), strings.Join(parts, ", "))
	}
	switch {
	case c.UnseenExact:
		parts = append(parts, "context and other processes "+Bytes(c.Unseen))
	case c.Unseen > 0:
		parts = append(parts, "context and other processes at least "+Bytes(c.Unseen))
	case c.Context == event.Unknown && c.Others == event.Unknown:
		parts = append(parts, "context and other processes unknown")
	default:
		parts = append(parts, "context "+Bytes(c.Context), "other processes "+OOMOthers(c))
	}
	if c.Rest > 0 && c.Rest != event.Unknown {
		parts = append(parts, "no process "+Bytes(c.Rest))
	}
	if c.Unseen > 0 && !c.UnseenExact {
		parts = append(parts, "free less than "+Bytes(c.Asked))
	} else {
		parts = append(parts, "free "+Bytes(c.Free))
	}
	torch := c.Torch.Reserved
	if c.Async {
		torch = c.Torch.Allocated
	}
	text := fmt.Sprintf("%s: PyTorch %s, %s", Bytes(c.Total), Bytes(torch), strings.Join(parts, ", "))
	if c.Read != 0 && c.Others != event.Unknown {
		text += fmt.Sprintf(" (the driver was read at %+.3f s)", (time.Duration(c.Read) - time.Duration(began)).Seconds())
	}
	return text
}

// OOMOthers names the largest of the other processes.
func OOMOthers(c *oom.Case) string {
	const named = 3
	all := slices.SortedFunc(slices.Values(c.By), func(a, b figures.ProcessUse) int { return cmp.Compare(b.Used, a.Used) })
	var by []string
	for _, o := range all[:min(named, len(all))] {
		by = append(by, fmt.Sprintf("pid %d %s", o.PID, Bytes(uint64(o.Used))))
	}
	if more := len(all) - len(by); more > 0 {
		by = append(by, fmt.Sprintf("%d more", more))
	}
	if c.Returned > 0 {
		return fmt.Sprintf("at least %s (%s)", Bytes(c.Others), strings.Join(append(by, Bytes(c.Returned)+" returned since"), ", "))
	}
	if len(by) == 0 {
		return Bytes(c.Others)
	}
	return fmt.Sprintf("%s (%s)", Bytes(c.Others), strings.Join(by, ", "))
}

func freeText(c *oom.Case) string {
	if c.Async {
		return "not seen: the pool of cudaMallocAsync is the driver's"
	}
	if len(c.Pools) == 0 && c.Torch.Reserved == 0 {
		return "nothing in segments: PyTorch has none"
	}
	if len(c.Pools) == 0 {
		return "unknown: not every block is known"
	}
	var parts []string
	for i := range c.Pools {
		if q := &c.Pools[i]; q.Free > 0 {
			parts = append(parts, fmt.Sprintf("%s in %s, largest %s", Bytes(q.Free), OOMPool(q), Bytes(q.Largest)))
		}
	}
	if parts == nil {
		return "nothing in the segments"
	}
	return strings.Join(parts, "; ")
}

// OOMPool names a pool.
func OOMPool(p *oom.PoolFree) string {
	name := "the large pool"
	if p.Small {
		name = "the small pool"
	}
	switch {
	case p.Owner == oom.GraphPool:
		name = "the pools of CUDA graphs"
	case p.Owner == oom.ProgramPool:
		name = "a MemPool, or a pool that CUDA graphs share"
	case p.Private:
		name = "private pools (MemPool or CUDA graph)"
	}
	if p.Stream != event.Unknown && p.Stream != 0 {
		name += fmt.Sprintf(" of stream %#x", p.Stream)
	}
	if p.Request {
		name += " (the request's)"
	}
	return name
}

func pinText(p *oom.Pin) string {
	var by []string
	for i := range p.By {
		by = append(by, fmt.Sprintf("%s of %s", Plural(p.By[i].Objects, "block"), words.Line(p.By[i].Site)))
	}
	return fmt.Sprintf("a segment of %s with %s free, largest %s, is kept by %s", Bytes(p.Size), Bytes(p.Free), Bytes(p.Largest),
		strings.Join(by, ", "))
}

func courseText(c *oom.Case) string {
	var parts []string
	if n := len(c.Steps); n > 0 {
		var peaks []string
		for _, s := range c.Steps[max(0, n-shownOOM):] {
			peaks = append(peaks, fmt.Sprintf("%d: %s", s.Step, Bytes(s.Peak)))
		}
		parts = append(parts, "peaks of the steps before "+strings.Join(peaks, ", "))
	}
	if c.Before60 != event.Unknown && c.Torch.Allocated != event.Unknown {
		parts = append(parts, fmt.Sprintf("%s in the last 60 s", signedText(int64(c.Torch.Allocated-c.Before60))))
	}
	if parts == nil {
		return "no step and less than 60 s before"
	}
	return strings.Join(parts, "; ")
}
