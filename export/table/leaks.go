// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// The widths of the columns of findings, in characters.
const (
	widthLeakExact  = 15
	widthLeakBytes  = 9
	widthLeakBlocks = 6
	widthLeakStep   = 5
	widthLeakShare  = 7
)

// Leaks prints the verdict on a recording: its sentence, what is known of the first finding, then all findings. width is that of the
// screen, characters; 0: it is not known.
func Leaks(w io.Writer, r *leaks.Report, sentence string, width int) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: width}}
	p.leakVerdict(r, sentence)
	p.leakField("steps", stepsText(&r.Steps))
	if s := r.Steps.Slopes; s != nil && r.Verdict == leaks.Growing {
		p.leakField("in all", fmt.Sprintf("each step, of the later half: requested %+.0f B, blocks %+.0f B, heaps %+.0f B", s.Requested,
			s.Blocks, s.Reserved))
	}
	p.leakRows("what grows, each time", r.Findings)
	p.leakRows("too slow to matter", r.Notes)
	return flushed(out)
}

// Verdict prints the sentence of Leaks, and what is known of the first finding.
func Verdict(w io.Writer, r *leaks.Report) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out}}
	p.leakVerdict(r, LeakSentence(r))
	p.line("")
	return flushed(out)
}

func flushed(out *bufio.Writer) error {
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the verdict: %w", err)
	}
	return nil
}

func (p *printer) leakVerdict(r *leaks.Report, sentence string) {
	p.leakText("", sentence)
	if len(r.Findings) > 0 {
		p.leakNotes(&r.Findings[0], strings.Contains(sentence, OutIn))
	}
	if note := LeakNote(r); note != "" {
		p.leakField("note", note)
	}
	if text := LeakFilling(r); text != "" {
		p.leakField("fills", text)
	}
	if text := LeakLonger(r); text != "" {
		p.leakField("longer", text)
	}
	if past := LeakPast(r); past != "" {
		p.leakField("before", past)
	}
	if stopped := LeakStopped(r); stopped != "" {
		p.leakField("past", stopped)
	}
}

// LeakNothing is the subject of a sentence on what does not grow.
func LeakNothing(r *leaks.Report) string {
	if len(r.Notes)+len(r.Filling)+len(r.Longer) > 0 {
		return "nothing that matters"
	}
	return "nothing"
}

// others ends a sentence on the first of several findings: "; so did 2 other lines". It is empty if there is one.
func others(verb string, all []leaks.Finding) string {
	if len(all) < 2 {
		return ""
	}
	if len(all) > 2 {
		verb = strings.Replace(verb, "does", "do", 1)
	}
	return fmt.Sprintf("; %s %s", verb, Plural(uint64(len(all)-1), "other line"))
}

// LeakPast says what grew in a loop that has ended; empty: nothing did.
func LeakPast(r *leaks.Report) string {
	if len(r.Past) == 0 {
		return ""
	}
	f := &r.Past[0]
	text := fmt.Sprintf("%s kept %s, until its loop ended with step %d", f.Name(), LeakMore(f), f.Last)
	return text + others("so did", r.Past)
}

// LeakStopped says what grew in the loop that runs and has stopped; empty: nothing has.
func LeakStopped(r *leaks.Report) string {
	if len(r.Stopped) == 0 {
		return ""
	}
	f := &r.Stopped[0]
	text := fmt.Sprintf("%s kept %s until step %d, and has kept its %s since", f.Name(), LeakMore(f), f.Last, Bytes(f.Grown))
	return text + others("so did", r.Stopped)
}

// LeakFilling says what grows only until its container is full; empty: nothing does.
func LeakFilling(r *leaks.Report) string {
	if len(r.Filling) == 0 {
		return ""
	}
	f := &r.Filling[0]
	b := f.Bound()
	name := words.Line(varpath.Readable(f.Holder))
	text := fmt.Sprintf("%s keeps %s in %s, which had %s of at most %s elements when it was read: %s when it is full",
		f.Name(), LeakMore(f), name, Count(b.Length), Count(b.Most), Bytes(b.Full))
	if b.IsFull() {
		return fmt.Sprintf("%s kept %s in %s until that was full: %s elements, %s",
			f.Name(), LeakMore(f), name, Count(b.Most), Bytes(b.Full)) + others("so did", r.Filling)
	}
	return text + others("so does", r.Filling)
}

// LeakLonger says which batches are longer each time; empty: none are.
func LeakLonger(r *leaks.Report) string {
	if len(r.Longer) == 0 {
		return ""
	}
	f := &r.Longer[0]
	text := fmt.Sprintf("the input of %s is %s", f.Name(), strings.Replace(LeakMore(f), " more", " longer", 1))
	inputs := slices.DeleteFunc(slices.Clone(r.Longer), func(f leaks.Finding) bool { return f.Phase != phases.Input })
	return text + others("likewise for", inputs) + ": what a step computes from it grows, too"
}

// LeakNote says what grows too slowly to matter; empty: nothing does.
func LeakNote(r *leaks.Report) string {
	if len(r.Notes) == 0 {
		return ""
	}
	f := &r.Notes[0]
	text := fmt.Sprintf("%s keeps %s", f.Name(), LeakMore(f))
	if f.Holder != "" {
		text += " in " + words.Line(varpath.Readable(f.Holder))
	}
	if n := len(r.Notes) - 1; n > 0 {
		text += fmt.Sprintf(", and %s", Plural(uint64(n), "other line"))
	}
	day, known := r.PerDay()
	if known {
		text += fmt.Sprintf(": %s a day, too little to matter", MeanBytes(day))
	}
	return text
}

// leakField is field for a text that may need several lines.
func (p *printer) leakField(name, text string) {
	p.leakText(fmt.Sprintf("%-*s", layout.FieldIndent, name), text)
}

// leakText prints a text that begins behind head, on as many lines as it needs.
func (p *printer) leakText(head, text string) { p.Wrap(head+words.Line(text), layout.FieldIndent) }

// LeakSentence is the verdict for people, in a sentence.
func LeakSentence(r *leaks.Report) string {
	switch r.Verdict {
	case leaks.Growing:
		return "growing: " + LeakText(&r.Findings[0])
	case leaks.Steady:
		return fmt.Sprintf("steady: %s grew from step to step in %d steps", LeakNothing(r), r.Steps.Count)
	case leaks.OutOfMemory:
		if r.Steps.Source == "" || r.Steps.Count < leaks.MinSteps {
			return "out of memory: a request was refused; with so few steps it is not known whether anything grew"
		}
		return fmt.Sprintf("out of memory: a request was refused, and nothing grew from step to step in %d steps", r.Steps.Count)
	}
	if r.Steps.Source == "" {
		return "unknown: no steps were found in the recording; --step-on FUNCTION says where one begins"
	}
	if r.Interim {
		return "unknown: " + leakInterim(r)
	}
	if len(r.Suspects) > 0 && r.Steps.Count >= leaks.MinSteps {
		text := fmt.Sprintf("unknown: %s, which was seen too few times to say whether it goes on", LeakTotal(r.Suspects, "at least "))
		if n := r.Needed(); n > 0 {
			text += fmt.Sprintf("; a recording of about %s can tell", Duration(time.Duration(n)))
		}
		return text
	}
	if r.Steps.Rise > 0 && r.Steps.Count >= leaks.MinSteps {
		return "unknown: " + leakRise(r)
	}
	if r.Steps.Loads {
		const why = "more than a quarter of what %d steps allocated is still there: it may be a model that is loaded, or memory that grows; " +
			"record longer"
		return fmt.Sprintf("unknown: "+why, r.Steps.Count)
	}
	text := fmt.Sprintf("unknown: %d steps are in the recording, and it takes %d to say that nothing grows", r.Steps.Count, leaks.MinSteps)
	if r.Steps.Period > 0 {
		text += fmt.Sprintf(": about %s", Duration(time.Duration(leaks.MinSteps*r.Steps.Period)))
	}
	return text
}

// leakInterim says what grows in a part of a job that trains, of which the end was not seen.
func leakInterim(r *leaks.Report) string {
	text := LeakTotal(r.Suspects, "")
	if f := &r.Suspects[0]; f.Holder != "" {
		text += ", in " + words.Line(varpath.Fit(f.Holder, 40))
	}
	return text + "; the job has optimizer state, but no backward pass was seen: an evaluation may drop this at its end; " +
		"record until it trains again"
}

// leakRise says by how much more is in use than before, and by which line where one is most of it.
func leakRise(r *leaks.Report) string {
	text := fmt.Sprintf("%s more are in use between steps than in the middle of %d steps", Bytes(r.Steps.Rise), r.Steps.Count)
	if len(r.Risers) > 0 && 2*r.Risers[0].Bytes >= r.Steps.Rise {
		const few = "too few rises were seen to say whether it goes on; record longer"
		text += fmt.Sprintf(", %s of it at %s", Bytes(r.Risers[0].Bytes), r.Risers[0].Name)
		if holder := r.Risers[0].Holder; holder != "" {
			text += " in " + words.Line(varpath.Fit(holder, 40))
		}
		if r.Risers[0].Turns {
			return text + ", whose early blocks are freed by now: sessions do so until as many end as begin; record longer"
		}
		if r.Steps.Fell >= r.Steps.Rise { // such as a sawtooth of which one tooth was seen
			text += fmt.Sprintf("; it had fallen by %s before", Bytes(r.Steps.Fell))
		}
		return text + ": " + few
	}
	return text + ", and no line grows by equal steps; --step-on FUNCTION says where one begins"
}

// LeakTotal says of findings, one or more, which lines keep how much together; least begins the amount.
func LeakTotal(all []leaks.Finding, least string) string {
	f, lines := leaks.Total(all)
	if lines > 1 {
		mean := ""
		rare := func(x leaks.Finding) bool {
			return x.Period > 1 && (x.Layer == event.LayerHost) == (f.Layer == event.LayerHost)
		}
		if f.Period == 1 && slices.ContainsFunc(all, rare) {
			mean = " on average" // they grow at different times
		}
		return fmt.Sprintf("%s and %s keep %s%s%s", f.Name(), Plural(uint64(lines-1), "other line"), least, LeakMore(&f), mean)
	}
	return fmt.Sprintf("%s keeps %s%s", f.Name(), least, LeakMore(&f))
}

// LeakText is a finding in a sentence.
func LeakText(f *leaks.Finding) string { return f.Name() + " " + LeakKeeps(f) }

// LeakKeeps is what a finding does, without its name.
func LeakKeeps(f *leaks.Finding) string {
	share := ""
	if !math.IsNaN(f.Share) {
		share = fmt.Sprintf(", %s of the growth", Share(f.Share))
	}
	return fmt.Sprintf("keeps %s, since step %d of %d%s", LeakMore(f), f.First, f.Last, share)
}

// farMore is how often as large as the requests the blocks are whose size is said, too: the rate of growth is that of blocks.
const farMore = 1.5

// LeakMore is by how much a finding grows, and how often.
func LeakMore(f *leaks.Finding) string {
	more := "more"
	if f.Layer == event.LayerHost {
		more = "more pinned host memory"
	}
	text := fmt.Sprintf("%s %s %s", MeanBytes(LeakSize(f)), more, LeakEvery(f))
	if f.Requested > 0 && f.Bytes >= farMore*f.Requested {
		text += fmt.Sprintf(" (%s in blocks)", MeanBytes(f.Bytes*riseSteps(f)))
	}
	return text
}

// LeakHolder is what holds the blocks of a finding, as of when.
func LeakHolder(f *leaks.Finding) string {
	if f.Newer == 0 {
		return words.Line(varpath.Readable(f.Holder))
	}
	return fmt.Sprintf("%s (and %s from the same line)", words.Line(varpath.Readable(f.Holder)), Plural(f.Newer, "newer block"))
}

// LeakLimit is in how long the device is full, where that is known.
func LeakLimit(f *leaks.Finding) string { return Span(f.Seconds) + " at this rate" }

// LeakSize is the bytes of a period, requested where that is known.
func LeakSize(f *leaks.Finding) float64 {
	if math.IsNaN(f.Requested) {
		return f.Bytes * riseSteps(f)
	}
	return f.Requested * riseSteps(f)
}

// aboutWhole is how far the number of blocks of a period may be from a whole number for it to be that number.
const aboutWhole = 0.1

// riseSteps is the mean number of steps between two rises: Period is a whole number, and a rise is of whole blocks.
func riseSteps(f *leaks.Finding) float64 {
	blocks := f.Blocks * float64(f.Period)
	whole := math.Round(blocks)
	if f.Period == 1 || whole < 1 || math.Abs(blocks-whole) > aboutWhole {
		return float64(f.Period)
	}
	return whole / f.Blocks
}

// LeakEvery is how often a finding grows, in words.
func LeakEvery(f *leaks.Finding) string {
	if f.Period == 1 {
		return "each step"
	}
	return fmt.Sprintf("every %d steps", f.Period)
}

// OutIn is in a sentence that says when the device is full.
const OutIn = "out of memory in about "

// leakNotes prints what is known of a finding beside its size; limit: the sentence says when the device is full.
func (p *printer) leakNotes(f *leaks.Finding, limit bool) {
	if f.Holder != "" {
		p.leakField("held by", LeakHolder(f))
	}
	if f.UsualEnd != "" {
		p.field("usual", "blocks of this line are freed in %s; these are not", f.UsualEnd)
	}
	if !limit && !math.IsNaN(f.Seconds) {
		p.leakField("full in", LeakLimit(f))
	}
	if a := f.Advice(); a != "" {
		p.leakField("advice", a)
	}
	if f.Confidence == leaks.Low {
		p.leakField("sure?", "fewer than 10 periods were seen: a queue or cache that fills looks the same; record longer")
	}
}

// Span is a time that can be days.
func Span(seconds float64) string {
	switch {
	case seconds < 10:
		return Duration(time.Duration(seconds * 1e9))
	case seconds < 120:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 2*3600:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.1f h", seconds/3600)
	}
	return fmt.Sprintf("%.0f days", seconds/86400)
}

func stepsText(s *leaks.Steps) string {
	if s.Source == "" {
		return "none found"
	}
	text := fmt.Sprintf("%d by %s (%s)", s.Count, sourceTexts[s.Source], s.On)
	if s.Period > 0 {
		text += fmt.Sprintf(", %s each", Duration(time.Duration(s.Period)))
	}
	return text
}

// sourceTexts say by what steps are recognised.
var sourceTexts = map[steps.Source]string{
	steps.SourceChosen: "--step-on", steps.SourceOptimizer: "the optimizer", steps.SourceBackward: "the backward pass",
	steps.SourceLoader: "the data loader",
	steps.SourcePeriod: "what recurs",
}

func (p *printer) leakRows(title string, findings []leaks.Finding) {
	if len(findings) == 0 {
		return
	}
	cells := func(requested, blocks, every, since, live, share string) string {
		return fmt.Sprintf(" %*s %*s %*s %*s %*s %*s", widthLeakExact, requested, widthLeakBlocks, blocks,
			widthLeakStep, every, widthLeakStep, since, widthLeakBytes, live, widthLeakShare, share)
	}
	p.line("")
	p.Heading(title, cells("requested", "blocks", "every", "since", "live", "share"))
	for i := range findings {
		f := &findings[i]
		share := Share(f.Share)
		n := float64(f.Period)
		p.Row(layout.LabelOf(words.Line(f.Name())), cells(exactBytes(n*f.Requested), blocksText(n*f.Blocks),
			strconv.Itoa(f.Period), strconv.Itoa(f.First), Bytes(f.LiveBytes), share))
		held := ""
		if f.Parted && f.Holder != "" { // the line does not tell it from others
			held = ", held by " + words.Line(varpath.Readable(f.Holder))
		}
		p.line("    %s, %s confidence, %s in blocks%s", f.Kind, f.Confidence, MeanBytes(n*f.Bytes), held)
		for j := range f.Calls {
			c := &f.Calls[j]
			l := layout.LabelOf(words.Line(c.Name()))
			l.Farther = 2
			p.Row(l, cells(exactBytes(n*c.Requested), blocksText(n*c.Blocks), "", "", "", ""))
		}
	}
}

// blocksText is a mean of blocks.
func blocksText(n float64) string { return strconv.FormatFloat(math.Round(n*100)/100, 'f', -1, 64) }

// MeanBytes is a mean of bytes in its unit.
func MeanBytes(n float64) string {
	switch {
	case math.IsNaN(n):
		return "unknown"
	case n < 0:
		return "-" + MeanBytes(-n)
	}
	return Bytes(uint64(math.Round(n)))
}

// StepBytes is MeanBytes, with a fraction where there are few.
func StepBytes(n float64) string {
	if n > 0 && n < 10 {
		return strconv.FormatFloat(n, 'g', 2, 64) + " B"
	}
	return MeanBytes(n)
}

// exactBytes is a mean of bytes, to the byte.
func exactBytes(n float64) string {
	if math.IsNaN(n) {
		return "unknown"
	}
	return strings.TrimPrefix(signedCount(int64(math.Round(n))), "+") + " B"
}
