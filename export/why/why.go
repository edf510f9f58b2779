// SPDX-License-Identifier: Apache-2.0

// Package why explains in words why a request for memory failed: the decided cause, and what else would have been enough.
package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// Text returns, in a sentence or two, why a request failed: the decision, and what else would have been enough.
func Text(c *oom.Case) string {
	return causeText(c) + joinedText(c) + leftText(c) + elsewhereText(c) + castsText(c) + spareText(c) + alsoText(c)
}

func causeText(c *oom.Case) string {
	asked := fmt.Sprintf("%s asked for %s", line(c.Site), table.Bytes(c.Requested))
	switch c.Decision {
	case oom.DriverError:
		return fmt.Sprintf("driver error: %s by %s, the driver refused it, and PyTorch did not report it; %s", asked, cmp.Or(c.Call, "a call"),
			roomText(c))
	case oom.AbsurdRequest:
		return absurdText(c, asked)
	case oom.Leak:
		return leakText(c)
	case oom.Fragmentation:
		return fmt.Sprintf("fragmentation: %s, and %s was free in the segments of its pool, in pieces of at most %s; %s%s",
			asked, table.Bytes(c.Pieces), table.Bytes(c.Largest), roomText(c), replayText(c.Replay))
	case oom.PrivatePool:
		return fmt.Sprintf("free, but in another pool: %s, and %s was free in %s, which a request outside of it cannot use; %s%s", asked,
			table.Bytes(c.InOtherPools()), table.OOMPool(c.OtherPool()), roomText(c), captureText(c))
	case oom.Limit:
		return limitText(c, asked)
	case oom.OtherProcess:
		return othersText(c, asked)
	case oom.OutsidePyTorch:
		return fmt.Sprintf("memory outside PyTorch: %s, and %s is held beside PyTorch's allocator: %s%s", asked, table.Bytes(c.Other.Bytes),
			ownersText(c), moreInside(c))
	case oom.PendingFrees:
		return fmt.Sprintf("freed, but waiting for another stream: %s, and %s waits; %s", asked, table.Bytes(c.Torch.Pending), roomText(c))
	case oom.EarlierAttempt:
		return fmt.Sprintf("memory of an earlier attempt: %s with %s; %s. %s", asked, allocatedText(c), roomText(c), attemptText(c))
	case oom.EarlierPhase:
		return fmt.Sprintf("memory of an earlier phase: %s; %s. %s", asked, roomText(c), endedText(c))
	case oom.LoadedTwice:
		return fmt.Sprintf("loaded twice, by the sizes: %s; %s. %s", asked, roomText(c), loadedText(c))
	case oom.Loading:
		return loadingText(c, asked)
	}
	if c.Larger {
		return largerText(c, asked)
	}
	return fullText(c, asked)
}

// captureText says how captures share memory, if a CUDA graph was being captured: torch/cuda/graphs.py.
func captureText(c *oom.Case) string {
	captures := func(f event.Frame) bool { return strings.HasSuffix(f.File, "torch/cuda/graphs.py") }
	if c.Stack == nil || !slices.ContainsFunc(c.Stack.Frames, captures) {
		return ""
	}
	return ". A graph was being captured: each capture takes memory of its own, unless all have the same pool=torch.cuda.graph_pool_handle()"
}

// line returns a line of code as it is shown. A repeated placeholder for unreadable names is shown once.
func line(site string) string {
	if name, again, ok := strings.Cut(site, "> <"); ok && "<"+again == name+">" {
		site = name + ">"
	}
	return words.Line(site)
}

func othersText(c *oom.Case, asked string) string {
	if c.Others == event.Unknown {
		least := "at least "
		if c.UnseenExact {
			least = ""
		}
		return fmt.Sprintf("other processes: %s. This process has %s of the device's %s; its context and other processes have %s%s", asked,
			table.Bytes(figures.Add(c.Torch.Reserved, c.Other.Bytes)), table.Bytes(c.Total), least, table.Bytes(c.Unseen))
	}
	text := fmt.Sprintf("other processes: %s, and other processes have %s of the device's %s", asked, table.OOMOthers(c), table.Bytes(c.Total))
	if x := c.Cause(oom.OtherProcess); x.Usual != event.Unknown && x.Usual < x.Bytes {
		text += fmt.Sprintf(", in earlier steps %s", table.Bytes(x.Usual))
	}
	return text
}

// endedText describes what an earlier phase has left.
func endedText(c *oom.Case) string {
	l := &c.Ended
	text := fmt.Sprintf("%s is the state of an optimizer that %s() used before it returned", table.Bytes(l.Bytes), l.Call)
	if l.Holder != view.NoHolder {
		text += "; " + line(varpath.Readable(l.Holder)) + " still holds it"
	}
	return text + ". Drop it before another optimizer begins"
}

// attemptText describes what an attempt has left that was refused memory.
func attemptText(c *oom.Case) string {
	a := &c.Attempt
	of := "an attempt that"
	if a.Call != "" {
		of = a.Call + "(), which"
	}
	text := fmt.Sprintf("%s is left of %s failed %s before, when %s was refused", table.Bytes(a.Bytes), of,
		table.Duration(time.Duration(c.Time-a.Time)), table.Bytes(a.Requested))
	if holder, _, ok := strings.Cut(a.Holder, varpath.Traceback); ok {
		return fmt.Sprintf("%s: %s keeps its exception, whose traceback keeps the variables of its frames: keep str(error)", text,
			line(varpath.Readable(holder)))
	}
	return text + ". If its exception is kept, that keeps the variables of its frames: keep only str(error), " +
		"and leave the except block before the next attempt"
}

// loadedText describes what was loaded to the device beside parameters of the same sizes. Whether it was copied into
// them is not known.
func loadedText(c *oom.Case) string {
	l := &c.Loaded
	text := fmt.Sprintf("%s that %s loaded has the sizes of parameters that are there too", table.Bytes(l.Bytes), line(l.Site))
	if l.Holder != view.NoHolder {
		text += ", held by " + line(varpath.Readable(l.Holder))
	}
	return text + `. If it was copied into them, load it with map_location="cpu", or drop it`
}

// leftText describes memory on the device that the program does not use, if it is not the cause.
func leftText(c *oom.Case) (out string) {
	if c.Decision != oom.EarlierAttempt && c.Attempt.Bytes >= leastSpare {
		out += ". " + attemptText(c)
	}
	if c.Decision != oom.EarlierPhase && c.Ended.Bytes > 0 {
		out += ". " + endedText(c)
	}
	if c.Decision != oom.LoadedTwice && c.Loaded.Bytes > 0 {
		out += ". " + loadedText(c)
	}
	if l := &c.Loading; l.Bytes > 0 {
		out += fmt.Sprintf(". %s had loaded %s, in the sizes of what is there already. If it is to replace that, load it to the CPU, as by "+
			`map_location="cpu"`,
			line(l.Site), table.Bytes(l.Bytes))
	}
	return out
}

// elsewhereText notes that another device of the process has much less memory in use than the full one.
func elsewhereText(c *oom.Case) (out string) {
	switch c.Decision {
	case oom.Full, oom.Loading, oom.Fragmentation:
	default:
		return ""
	}
	if len(c.Elsewhere) == 0 {
		return ""
	}
	least := &c.Elsewhere[0]
	for i := range c.Elsewhere {
		if c.Elsewhere[i].Used < least.Used {
			least = &c.Elsewhere[i]
		}
	}
	if own := c.Torch.Reserved + c.Other.Bytes; c.Torch.Reserved == event.Unknown || least.Used > own/2 {
		return ""
	}
	out = fmt.Sprintf(". On %s the process has only %s", least.Device, table.Bytes(least.Used))
	if least.Total != event.Unknown {
		out += " of " + table.Bytes(least.Total)
	}
	if c.Gathered > 0 {
		out += fmt.Sprintf(": nn.DataParallel gathered the outputs of all GPUs on %s, %s in this step. Compute the loss inside the module, or "+
			"use DistributedDataParallel", c.Device, table.Bytes(c.Gathered))
	}
	return out
}

// Free and waiting memory is mentioned if it is at least this share of the reserved memory, and at least this number of bytes.
const (
	spareShare   = 4
	pendingShare = 10
	castsShare   = 20
	leastSpare   = 64 << 20
)

// spareText describes unused memory that PyTorch keeps, if it is much and not mentioned yet.
func spareText(c *oom.Case) (out string) {
	t := &c.Torch
	if t.Reserved == event.Unknown || c.Async {
		return ""
	}
	if free := t.Reserved - min(t.Reserved, t.Allocated); t.Allocated != event.Unknown && c.Decision != oom.Fragmentation &&
		c.Decision != oom.PrivatePool && free >= max(leastSpare, t.Reserved/spareShare) {
		out += fmt.Sprintf(". Of %s reserved %s is free", table.Bytes(t.Reserved), table.Bytes(free))
		if len(c.Pools) > 0 {
			out += ", in pieces of at most " + table.Bytes(largestOf(c))
		}
	}
	if t.Pending != event.Unknown && c.Decision != oom.PendingFrees && t.Pending >= max(leastSpare, t.Reserved/pendingShare) {
		out += fmt.Sprintf(". %s waits for another stream", table.Bytes(t.Pending))
	}
	return out
}

func largestOf(c *oom.Case) (largest uint64) {
	for i := range c.Pools {
		largest = max(largest, c.Pools[i].Largest)
	}
	return largest
}

func absurdText(c *oom.Case, asked string) string {
	switch {
	case c.Device.Type.MPS():
		return fmt.Sprintf("a request larger than all that PyTorch may have: %s, %s", asked, watermarkText(c))
	case c.Total == event.Unknown:
		return fmt.Sprintf("a request larger than any device: %s; PyTorch had %s allocated", asked, table.Bytes(c.Torch.Allocated))
	}
	begin := ": "
	if c.Cause(oom.LargerStep).Bytes > 0 && c.Healthy != event.Unknown {
		begin = ", " + needsText(c) + ". "
	}
	return fmt.Sprintf("a request larger than the device%s%s, the device has %s%s", begin, asked, table.Bytes(c.Total), departsText(c))
}

// moreInside describes PyTorch's memory if it exceeds the memory outside PyTorch.
func moreInside(c *oom.Case) string {
	if c.Torch.Allocated == event.Unknown || c.Torch.Allocated <= c.Other.Bytes {
		return ""
	}
	return fmt.Sprintf(". PyTorch has more: %s allocated%s", table.Bytes(c.Torch.Allocated), partsText(c))
}

// partsText returns the two largest parts of PyTorch's allocated memory, in parentheses; empty: no part is known.
func partsText(c *oom.Case) string {
	var by []string
	for _, part := range c.LargestParts(2) {
		by = append(by, fmt.Sprintf("%s %s", line(cmp.Or(table.CategoryText(part.Category), part.Site)), table.Bytes(part.Bytes)))
	}
	if by == nil {
		return ""
	}
	return " (" + strings.Join(by, ", ") + ")"
}

// alsoText describes what else would have been enough, which causes would not, and what grows outside PyTorch.
func alsoText(c *oom.Case) (out string) {
	var enough, short []string
	for i := range c.Causes {
		x := &c.Causes[i]
		switch {
		case x.Decision == c.Decision, x.Decision == oom.Loading, isEarlier(x.Decision), x.Decision == oom.LoadedTwice, x.Bytes == event.Unknown,
			x.Decision == oom.LargerStep && (c.Larger || isEarlier(c.Decision)):
		case slices.Contains(c.Also, x.Decision), c.Decision == oom.DriverError && x.Alone == oom.Yes &&
			x.Decision != oom.LargerStep: // the request itself is what is larger
			enough = append(enough, nameOf(c, x))
		case c.Decision == oom.Full && !c.Larger && x.Alone == oom.No && c.Need != event.Unknown && x.Bytes >= c.Need/2:
			short = append(short, nameOf(c, x))
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

// isEarlier reports whether a cause is memory from before the failing attempt or phase, by which its step is larger than others.
func isEarlier(d oom.Decision) bool { return d == oom.EarlierPhase || d == oom.EarlierAttempt }

// causes are the causes in words, to follow their bytes.
var causes = map[oom.Decision]string{
	oom.Leak: "that grew from step to step", oom.LargerStep: "by which this step exceeds those before", oom.Fragmentation: "of fragmentation",
	oom.PrivatePool: "that are free in other pools", oom.OtherProcess: "of other processes", oom.OutsidePyTorch: "outside PyTorch",
	oom.PendingFrees: "that wait for another stream", oom.Cached: "that PyTorch keeps cached",
}

// nameOf returns the name of a cause with its bytes.
func nameOf(c *oom.Case, x *oom.Cause) string {
	if x.Decision == oom.Limit {
		return fmt.Sprintf("the program's own limit, which leaves %s unused", table.Bytes(x.Bytes))
	}
	if x.Decision == oom.Leak && c.Doubt == leaks.FewRises {
		return table.Bytes(x.Bytes) + " that a few equal rises had added"
	}
	return table.Bytes(x.Bytes) + " " + causes[x.Decision]
}

// replayText says whether expandable segments would have helped.
func replayText(r *oom.Replay) string {
	if r == nil {
		return ". Whether expandable_segments:True would have been enough is not known"
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
		return fmt.Sprintf(". With expandable_segments:True %s fails too, in step %d%s", line(r.Site), r.Step, sure)
	}
	return fmt.Sprintf(". With expandable_segments:True %s fails too%s", line(r.Site), sure)
}

func it(n int) string {
	if n == 1 {
		return "it"
	}
	return fmt.Sprintf("the %d growing lines", n)
}

func ownersText(c *oom.Case) string {
	var by []string
	for i := range c.Owners[:min(2, len(c.Owners))] {
		by = append(by, fmt.Sprintf("%s %s", line(c.Owners[i].Name), table.Bytes(c.Owners[i].Bytes)))
	}
	return strings.Join(by, ", ")
}

// roomText says how much of the device was free, if known.
func roomText(c *oom.Case) string {
	switch {
	case c.Device.Type.MPS() && c.Limit != event.Unknown:
		return "of the memory that the device shares with the processor PyTorch " + watermarkText(c)
	case c.Device.Type.MPS():
		return "the memory is shared with the processor"
	case c.Free != event.Unknown:
		return fmt.Sprintf("%s of the device was free", table.Bytes(c.Free))
	case c.Unseen > 0:
		return fmt.Sprintf("this process has %s of the device's %s", table.Bytes(figures.Add(c.Torch.Reserved, c.Other.Bytes)),
			table.Bytes(c.Total))
	}
	if c.Total != event.Unknown && c.Total != 0 {
		return "the device has " + table.Bytes(c.Total)
	}
	return "it is not known how much of the device was free"
}

// aloneText says that the request would not have fitted either if PyTorch had nothing else in use.
func aloneText(c *oom.Case) string {
	room, limit := figures.Add(c.Free, c.Torch.Reserved), ""
	if !c.Device.Type.MPS() && c.Limit < room && c.LimitBelow == 0 {
		room, limit = c.Limit, " by its own limit (set_per_process_memory_fraction)"
	}
	if c.Device.Type.MPS() || limits(c) || room == event.Unknown || c.Requested == event.Unknown || c.Requested <= room {
		return ""
	}
	return fmt.Sprintf(". PyTorch could have at most %s here%s, less than this request alone", table.Bytes(room), limit)
}

// limits reports whether the program's own limit refused a request for which the device had room.
func limits(c *oom.Case) bool {
	return !c.Device.Type.MPS() && slices.Contains(c.Also, oom.Limit)
}

// limitBytes is the program's own limit, as far as it is known.
func limitBytes(c *oom.Case) string {
	if c.LimitBelow != 0 {
		return fmt.Sprintf("at least %s and less than %s", table.Bytes(c.Limit), table.Bytes(c.LimitBelow))
	}
	return table.Bytes(c.Limit)
}

func limitText(c *oom.Case, asked string) string {
	limit := limitBytes(c)
	if c.Device.Type.MPS() {
		return fmt.Sprintf("PyTorch's limit for MPS: %s, the process has %s of Metal and %s", asked, table.Bytes(c.OnMPS()), watermarkText(c))
	}
	text := fmt.Sprintf("the program's own limit: %s, PyTorch has %s reserved and may have %s (set_per_process_memory_fraction)", asked,
		table.Bytes(c.Torch.Reserved), limit)
	if c.Total != event.Unknown && c.Total > c.Limit {
		text += " of the device's " + table.Bytes(c.Total)
	}
	if text += "; it did not ask the driver"; c.Free != event.Unknown || c.Total == event.Unknown {
		text += ", and " + roomText(c)
	}
	return text
}

// watermarkText describes the limit of PyTorch's MPS allocator, and how it is computed. The device's recommended size is no limit.
func watermarkText(c *oom.Case) string {
	const name = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
	switch {
	case c.Limit == event.Unknown:
		return "how much it may have is not known"
	case c.LimitBelow != 0:
		return fmt.Sprintf("may have at least %s and less than %s (%s, or set_per_process_memory_fraction)", table.Bytes(c.Limit),
			table.Bytes(c.LimitBelow), name)
	case c.Total == event.Unknown || c.Total == 0:
		return "may have " + table.Bytes(c.Limit)
	}
	return fmt.Sprintf("may have %s: %.3g (%s) x %s (recommendedMaxWorkingSetSize)", table.Bytes(c.Limit), float64(c.Limit)/float64(c.Total),
		name, table.Bytes(c.Total))
}

// allocatedText describes PyTorch's memory by its largest parts.
func allocatedText(c *oom.Case) string {
	text := "nothing allocated"
	if c.Torch.Allocated != 0 {
		text = table.Bytes(c.Torch.Allocated) + " allocated" + partsText(c)
	}
	if !c.Async {
		text += fmt.Sprintf(" and %s reserved", table.Bytes(c.Torch.Reserved))
	}
	return text
}

// leakText describes growth, and what of it is there.
func leakText(c *oom.Case) string {
	kind := "a leak"
	if !slices.ContainsFunc(c.Findings, func(f leaks.Finding) bool { return f.Blocks > 0 }) {
		kind = "growth" // of tensors that the program replaces by longer ones
	}
	if b := c.Findings[0].Bound(); b != nil && !b.Cache {
		kind = "growth up to a bound that the device has no room for"
	}
	grown, all := table.Bytes(c.Cause(oom.Leak).Bytes), table.Bytes(c.Torch.Allocated)
	first := leaks.OfLine(c.Findings, &c.Findings[0])
	_, lines := leaks.Total(c.Findings)
	return fmt.Sprintf("%s: %s; %s had grown to %s by then, of %s allocated", kind, table.LeakText(&first), it(lines), grown, all) + doubtText(c)
}

func fullText(c *oom.Case, asked string) string {
	text := fmt.Sprintf("full: %s with %s; %s", asked, allocatedText(c), roomText(c)) + aloneText(c)
	if free, largest := c.FreePrivate(); free > c.Torch.Reserved/20 {
		text += fmt.Sprintf(". Private pools keep %s free, in pieces of at most %s", table.Bytes(free), table.Bytes(largest))
	}
	if c.Healthy != event.Unknown {
		text += fmt.Sprintf(". The steps before peaked at %s", table.Bytes(c.Healthy))
	}
	if c.Fill.Site != "" {
		text += ". " + fillText(c)
	}
	return text + withinText(c) + ladderText(c)
}

// largerText describes a step that needs more than the earlier ones.
func largerText(c *oom.Case, asked string) string {
	if c.State > 0 {
		return fmt.Sprintf("full in the first step of the optimizer: %s with %s; %s. Forward and backward had fitted%s", asked,
			allocatedText(c), roomText(c), withinText(c))
	}
	what, room := "full", roomText(c)
	if limits(c) {
		what = "the program's own limit"
		room = fmt.Sprintf("PyTorch may have %s (set_per_process_memory_fraction), and %s", limitBytes(c), room)
	}
	text := fmt.Sprintf("%s, %s. %s with %s; %s", what, needsText(c), asked, allocatedText(c), room)
	return text + aloneText(c) + departsText(c) + withinText(c) + ladderText(c)
}

// needsText says how much a step needs that is larger than those before.
func needsText(c *oom.Case) string {
	if level := figures.Add(c.Torch.Allocated, c.Requested); level > c.Healthy {
		return fmt.Sprintf("in a step that needs at least %s: those before peaked at %s", table.Bytes(level), table.Bytes(c.Healthy))
	}
	return fmt.Sprintf("in a step that needs at least %s more than those before, which peaked at %s",
		table.Bytes(c.Cause(oom.LargerStep).Bytes), table.Bytes(c.Healthy))
}

// departsText says where the failing step begins to ask for more than the steps before.
func departsText(c *oom.Case) string {
	d := &c.Departs
	switch {
	case d.Bytes == 0:
		return ""
	case d.Site == c.Site && d.Bytes == c.Requested:
		return fmt.Sprintf(". In the steps before, this line asked for at most %s", table.Bytes(d.Usual))
	}
	return fmt.Sprintf(". This step first differs from those before at %s, which asked for %s and in those steps for at most %s",
		line(d.Site), table.Bytes(d.Bytes), table.Bytes(d.Usual))
}

// ladderText describes requests each of which was larger than the one before by the same number of bytes.
func ladderText(c *oom.Case) string {
	if c.Ladder.Count == 0 {
		return ""
	}
	return fmt.Sprintf(". Each of this line's last %d requests was %s larger than the one before, as when torch.cat lengthens a tensor: "+
		"keep the parts in a list, on the CPU if there are many",
		c.Ladder.Count, table.Bytes(c.Ladder.More))
}

// loadingText describes what was allocated on the device before the first step.
func loadingText(c *oom.Case, asked string) string {
	what := "full, filled by one line"
	if c.Fill.Phase == phases.Setup {
		what = "full"
		if c.Phase == phases.Setup || c.Phase == phases.Other {
			what = "full while the model is loaded"
		}
	}
	return fmt.Sprintf("%s: %s with %s; %s%s. %s%s%s", what, asked, allocatedText(c), roomText(c), aloneText(c), fillText(c), mappedText(c),
		ladderText(c))
}

// mappedText says that what fills the device was loaded to it from a file, if another line asked for more.
func mappedText(c *oom.Case) string {
	if !c.Fill.Loaded() || c.Fill.Site == c.Site {
		return ""
	}
	return `. It was loaded from a file: if it is not used on the device, load it to the CPU, as by map_location="cpu"`
}

// castsText describes the copies of weights that autocast keeps, if they are many.
func castsText(c *oom.Case) string {
	if c.Casts < leastSpare || c.Casts < c.Torch.Allocated/castsShare {
		return ""
	}
	return fmt.Sprintf(". Autocast keeps %s in copies of weights until its outermost context ends", table.Bytes(c.Casts))
}

// fillText describes what a line has allocated on the device.
func fillText(c *oom.Case) string {
	g := &c.Fill
	return fmt.Sprintf("%s has put %s there, %s, before any step", line(g.Site), table.Plural(g.Objects, "block"), table.Bytes(g.Bytes)) +
		heldText(g)
}

// doubtText says why growth may have ended before the request.
func doubtText(c *oom.Case) string {
	switch c.Doubt {
	case leaks.FewRises:
		return ". It rose only a few times, and a pool that fills looks the same"
	case leaks.MayBeOver:
		return ". The request was made outside the loop that grew, which may have ended"
	}
	return ""
}

// joinedText says that a request copies blocks which are in use until it has; empty: it is not known to.
func joinedText(c *oom.Case) string {
	g := &c.Joined
	if g.Site == "" || c.Decision != oom.Full && c.Decision != oom.Limit {
		return ""
	}
	return fmt.Sprintf(". The request is as large as the blocks of %s together: if it joins the blocks into a copy, both are in use until "+
		"it is made, %s: join them on the CPU, or fill one tensor that is made before", line(g.Site), table.Bytes(g.Bytes+c.Requested))
}

// heldText returns the holder of most blocks of a line; empty: not known.
func heldText(g *oom.Growth) string {
	if g.Holder == view.NoHolder {
		return ""
	}
	return fmt.Sprintf("; %s of it is held by %s", table.Bytes(g.Held), line(varpath.Readable(g.Holder)))
}

// withinWhat begins a sentence about the failing step or, if no step is known, about the rise before the failure.
func withinWhat(c *oom.Case) string {
	if c.Since == 0 {
		return ". Within this step"
	}
	return fmt.Sprintf(". In the last %.1f s memory rose from %s:", float64(c.Time-c.Since)/1e9, table.Bytes(c.Low))
}

// withinText describes what stands out in the failing step.
func withinText(c *oom.Case) (text string) {
	if c.State > 0 {
		return fmt.Sprintf(". The optimizer was making its state, of which %s is there", table.Bytes(c.State))
	}
	if p := &c.Passes; p.Count > 0 {
		return fmt.Sprintf("%s the activations of %d inputs that %s brought are in use, about %s of each. "+
			"Where their losses do not depend on each other, call backward() for each: a sum keeps them all",
			withinWhat(c), p.Count, line(p.Site), table.Bytes(p.Each))
	}
	if s := &c.Spread; s.Places > 0 {
		return fmt.Sprintf("%s %s of %d operations are still in use, %s. %s", withinWhat(c), table.Plural(s.Objects, "block"), s.Places,
			table.Bytes(s.Bytes), c.Advice())
	}
	g := &c.Grown
	if g.Site == "" {
		return ""
	}
	blocks := table.Plural(g.Objects, "block")
	text = fmt.Sprintf("%s %s has allocated %s that are still in use, %s", withinWhat(c), line(g.Site), blocks, table.Bytes(g.Bytes))
	text += heldText(g)
	if g.Copy {
		return text + ". They have the sizes of parameters that this line made before, which are still in use: if this is a copy of a " +
			"model, use the first one, or delete it before"
	}
	if advice := c.Advice(); advice != "" {
		text += ". " + advice
	}
	return text
}
