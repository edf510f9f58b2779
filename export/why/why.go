// SPDX-License-Identifier: Apache-2.0

// Package why puts into words why a request for memory failed: the cause that was decided for, and what else would have been enough.
package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// Text is why a request failed, in a sentence or two: the decision, and what else would have been enough.
func Text(c *oom.Case) string { return causeText(c) + alsoText(c) }

func causeText(c *oom.Case) string {
	asked := fmt.Sprintf("%s asked for %s", words.Line(c.Site), table.Bytes(c.Requested))
	switch c.Decision {
	case oom.DriverError:
		return fmt.Sprintf("driver error: %s by %s, the driver refused it, and PyTorch did not report it; %s", asked, cmp.Or(c.Call, "a call"), roomText(c))
	case oom.AbsurdRequest:
		return absurdText(c, asked)
	case oom.Leak:
		return fmt.Sprintf("a leak: %s; %s had grown to %s by then, of %s allocated", table.LeakText(&c.Findings[0]), it(len(c.Findings)), table.Bytes(c.Cause(oom.Leak).Bytes), table.Bytes(c.Torch.Allocated))
	case oom.Fragmentation:
		return fmt.Sprintf("fragmentation: %s, and %s were free in the segments of its pool, in pieces of which the largest has %s; %s%s", asked, table.Bytes(c.Pieces), table.Bytes(c.Largest), roomText(c), replayText(c.Replay))
	case oom.PrivatePool:
		return fmt.Sprintf("free, but in another pool: %s, and %s were free in %s, which a request outside of it cannot use; %s", asked, table.Bytes(c.InOtherPools()), table.OOMPool(c.OtherPool()), roomText(c))
	case oom.Limit:
		return limitText(c, asked)
	case oom.OtherProcess:
		text := fmt.Sprintf("other processes: %s, and other processes have %s of the device's %s", asked, table.OOMOthers(c), table.Bytes(c.Total))
		if x := c.Cause(oom.OtherProcess); x.Usual != event.Unknown && x.Usual < x.Bytes {
			text += fmt.Sprintf(", in earlier steps %s", table.Bytes(x.Usual))
		}
		return text
	case oom.OutsidePyTorch:
		return fmt.Sprintf("memory outside PyTorch: %s, and %s are held beside PyTorch's allocator: %s%s", asked, table.Bytes(c.Other.Bytes), ownersText(c), moreInside(c))
	case oom.PendingFrees:
		return fmt.Sprintf("freed, but waiting for another stream: %s, and %s wait; %s", asked, table.Bytes(c.Torch.Pending), roomText(c))
	case oom.Loading:
		return loadingText(c, asked)
	}
	if c.Larger {
		return largerText(c, asked)
	}
	return fullText(c, asked)
}

func absurdText(c *oom.Case, asked string) string {
	switch {
	case c.Device.Type.MPS():
		return fmt.Sprintf("a request larger than all that PyTorch may have: %s, %s", asked, watermarkText(c))
	case c.Total == event.Unknown:
		return fmt.Sprintf("a request larger than any device: %s; PyTorch had %s allocated", asked, table.Bytes(c.Torch.Allocated))
	}
	return fmt.Sprintf("a request larger than the device: %s, the device has %s", asked, table.Bytes(c.Total))
}

// moreInside says what PyTorch has where that is more than what is outside of it.
func moreInside(c *oom.Case) string {
	if c.Torch.Allocated == event.Unknown || c.Torch.Allocated <= c.Other.Bytes {
		return ""
	}
	return fmt.Sprintf(". PyTorch has more: %s allocated (%s)", table.Bytes(c.Torch.Allocated), partsText(c))
}

// partsText is the two largest parts of what PyTorch has allocated.
func partsText(c *oom.Case) string {
	var by []string
	for _, part := range c.LargestParts(2) {
		by = append(by, fmt.Sprintf("%s %s", words.Line(cmp.Or(table.CategoryText(part.Category), part.Site)), table.Bytes(part.Bytes)))
	}
	return strings.Join(by, ", ")
}

// alsoText is what else would have been enough, or what of the causes was not, and what grows outside of PyTorch.
func alsoText(c *oom.Case) (out string) {
	var enough, short []string
	for i := range c.Causes {
		x := &c.Causes[i]
		switch {
		case x.Decision == c.Decision, c.Larger && x.Decision == oom.LargerStep, x.Decision == oom.Loading, x.Bytes == event.Unknown:
		case slices.Contains(c.Also, x.Decision), c.Decision == oom.DriverError && x.Alone == oom.Yes && x.Decision != oom.LargerStep: // the request itself is what is larger
			enough = append(enough, nameOf(x))
		case c.Decision == oom.Full && !c.Larger && x.Alone == oom.No && c.Need != event.Unknown && x.Bytes >= c.Need/2:
			short = append(short, nameOf(x))
		}
	}
	if enough != nil {
		out += ". It would also have fitted without " + strings.Join(enough, ", or without ")
	}
	if short != nil {
		out += ". Not enough alone: " + strings.Join(short, ", ")
	}
	for i := range c.Outside[:min(1, len(c.Outside))] {
		out += ". Outside of PyTorch " + table.LeakText(&c.Outside[i])
	}
	return out
}

// causes are the causes in words, after their bytes.
var causes = map[oom.Decision]string{
	oom.Leak: "that grew from step to step", oom.LargerStep: "that this step needs more than those before", oom.Fragmentation: "of fragmentation",
	oom.PrivatePool: "that are free in other pools", oom.OtherProcess: "of other processes", oom.OutsidePyTorch: "outside PyTorch",
	oom.PendingFrees: "that wait for another stream", oom.Cached: "that PyTorch keeps cached",
}

// nameOf names a cause with its bytes.
func nameOf(x *oom.Cause) string {
	if x.Decision == oom.Limit {
		return fmt.Sprintf("the program's own limit, which leaves %s unused", table.Bytes(x.Bytes))
	}
	return table.Bytes(x.Bytes) + " " + causes[x.Decision]
}

// replayText says whether expandable segments would have helped.
func replayText(r *oom.Replay) string {
	if r == nil {
		return ""
	}
	sure := ", by a replay"
	if !r.Exact {
		sure = ", by a replay that is an estimate"
	}
	switch {
	case r.Recorded:
		return ". Expandable segments are on"
	case r.Outcome == oom.Fits:
		return ". With expandable_segments:True it would not have failed, nor what followed it in earlier steps" + sure
	case r.Outcome == oom.FitsOnce:
		return ". With expandable_segments:True this request fits" + sure + "; whether what would have followed it does is not known"
	case r.Step > 0:
		return fmt.Sprintf(". With expandable_segments:True %s fails too, in step %d%s", words.Line(r.Site), r.Step, sure)
	}
	return fmt.Sprintf(". With expandable_segments:True %s fails too%s", words.Line(r.Site), sure)
}

func it(n int) string {
	if n == 1 {
		return "it"
	}
	return fmt.Sprintf("all %d that grow", n)
}

func ownersText(c *oom.Case) string {
	var by []string
	for i := range c.Owners[:min(2, len(c.Owners))] {
		by = append(by, fmt.Sprintf("%s %s", words.Line(c.Owners[i].Name), table.Bytes(c.Owners[i].Bytes)))
	}
	return strings.Join(by, ", ")
}

// roomText says how much the device had free, if that is known.
func roomText(c *oom.Case) string {
	if c.Device.Type.MPS() {
		return "the memory is shared with the processor"
	}
	if c.Free == event.Unknown {
		return "how much of the device was free is not known"
	}
	return fmt.Sprintf("%s of the device were free", table.Bytes(c.Free))
}

func limitText(c *oom.Case, asked string) string {
	limit := table.Bytes(c.Limit)
	if c.LimitBelow != 0 {
		limit = fmt.Sprintf("at least %s and less than %s", table.Bytes(c.Limit), table.Bytes(c.LimitBelow))
	}
	if c.Device.Type.MPS() {
		return fmt.Sprintf("PyTorch's limit for MPS: %s, the process has %s of Metal and %s", asked, table.Bytes(c.OnMPS()), watermarkText(c))
	}
	return fmt.Sprintf("the program's own limit: %s, PyTorch has %s reserved and may have %s; it did not ask the driver. %s", asked, table.Bytes(c.Torch.Reserved), limit, roomText(c))
}

// watermarkText is the limit of PyTorch's MPS allocator, and what it is made of: it has no other, the device's recommended size is no limit.
func watermarkText(c *oom.Case) string {
	const name = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
	switch {
	case c.Limit == event.Unknown:
		return "how much it may have is not known"
	case c.LimitBelow != 0:
		return fmt.Sprintf("may have at least %s and less than %s (%s, or set_per_process_memory_fraction)", table.Bytes(c.Limit), table.Bytes(c.LimitBelow), name)
	case c.Total == event.Unknown || c.Total == 0:
		return "may have " + table.Bytes(c.Limit)
	}
	return fmt.Sprintf("may have %s: %.3g (%s) x %s (recommendedMaxWorkingSetSize)", table.Bytes(c.Limit), float64(c.Limit)/float64(c.Total), name, table.Bytes(c.Total))
}

// allocatedText is what PyTorch has, by its largest parts.
func allocatedText(c *oom.Case) string {
	text := "nothing allocated"
	if c.Torch.Allocated != 0 {
		text = fmt.Sprintf("%s allocated (%s)", table.Bytes(c.Torch.Allocated), partsText(c))
	}
	if !c.Async {
		text += fmt.Sprintf(" and %s reserved", table.Bytes(c.Torch.Reserved))
	}
	return text
}

func fullText(c *oom.Case, asked string) string {
	text := fmt.Sprintf("full: %s with %s; %s", asked, allocatedText(c), roomText(c))
	if free, largest := c.FreePrivate(); free > c.Torch.Reserved/20 {
		text += fmt.Sprintf(". Private pools keep %s free, in pieces of at most %s", table.Bytes(free), table.Bytes(largest))
	}
	if c.Healthy != event.Unknown {
		text += fmt.Sprintf(". The steps before peaked at %s", table.Bytes(c.Healthy))
	}
	if c.Fill.Site != "" {
		text += ". " + fillText(c)
	}
	return text + withinText(c)
}

// largerText is said of a step that needs more than those before.
func largerText(c *oom.Case, asked string) string {
	if c.State > 0 {
		return fmt.Sprintf("full in the optimizer's first step: %s with %s; %s. Forward and backward had fitted%s", asked, allocatedText(c), roomText(c), withinText(c))
	}
	more := c.Cause(oom.LargerStep).Bytes
	return fmt.Sprintf("full, in a step that needs %s more than those before: %s with %s; %s. The steps before peaked at %s%s", table.Bytes(more), asked, allocatedText(c), roomText(c), table.Bytes(c.Healthy), withinText(c))
}

// loadingText is said of what was put on the device before there was a step.
func loadingText(c *oom.Case, asked string) string {
	what := "full, filled by one line"
	if c.Fill.Phase == phases.Setup {
		what = "full while the model is loaded"
	}
	return fmt.Sprintf("%s: %s with %s; %s. %s", what, asked, allocatedText(c), roomText(c), fillText(c))
}

// fillText is what a line has put on the device.
func fillText(c *oom.Case) string {
	g := &c.Fill
	return fmt.Sprintf("%s has put %s there, %s, before any step", words.Line(g.Site), table.Plural(g.Objects, "block"), table.Bytes(g.Bytes)) + heldText(g)
}

// heldText is what holds the most of the blocks of a line; empty: that is not known.
func heldText(g *oom.Growth) string {
	if g.Holder == view.NoHolder {
		return ""
	}
	return fmt.Sprintf("; %s of it are held by %s", table.Bytes(g.Held), words.Line(g.Holder))
}

// withinText is what stands out in the step of the failure.
func withinText(c *oom.Case) (text string) {
	if c.State > 0 {
		return fmt.Sprintf(". The optimizer was making its state, of which %s are there", table.Bytes(c.State))
	}
	g := &c.Grown
	if g.Site == "" {
		return ""
	}
	text = fmt.Sprintf(". Within this step %s has allocated %s that are still in use, %s", words.Line(g.Site), table.Plural(g.Objects, "block"), table.Bytes(g.Bytes)) + heldText(g)
	if advice := c.Advice(); advice != "" {
		text += ". " + advice
	}
	return text
}
