// SPDX-License-Identifier: Apache-2.0

// Package verdict puts the conclusion of a recording into words. The terminal, the page, the picture, JSON, profiles
// and the screen of a job all use these words, so that they agree with each other.
package verdict

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/why"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Words of the verdicts, as people see them.
const (
	Growing     = "GROWING"
	Steady      = "STEADY"
	OutOfMemory = "OUT OF MEMORY"
	Unknown     = "UNKNOWN"
)

// Text is a verdict in words.
type Text struct {
	Word  string // one of the words above
	Text  string // the sentence that follows the word
	Notes []Note // printed below the sentence
}

// Note is a fact that belongs to a verdict.
type Note struct{ Name, Text string }

// String returns the verdict in one sentence.
func (t *Text) String() string { return t.Word + "  " + t.Text }

// Of returns the verdict of an answer; nil if the recording was not judged, as for a PyTorch snapshot.
func Of(a *answer.Answer) *Text {
	if a.Case != nil {
		return outOfMemory(a)
	}
	t := ofGrowth(a)
	if t != nil && a.Paused != "" && a.Events > 0 {
		t.Notes = append(t.Notes, Note{"paused", "the process was " + a.Paused + " when the recording ended"})
	}
	return t
}

func ofGrowth(a *answer.Answer) *Text {
	switch r := a.Leaks; {
	case r == nil:
		return nil
	case r.Verdict != leaks.Growing && a.Events == 0:
		t := &Text{Word: Unknown, Text: "no allocation or free was seen in " + table.Duration(a.Length())}
		if a.Paused != "" {
			t.Text += ": the process was " + a.Paused
		}
		return t
	case r.Verdict == leaks.Growing:
		return &Text{Word: Growing, Text: growing(a), Notes: append(hostNotes(&r.Findings[0]), growthNotes(r)...)}
	case r.Verdict == leaks.Steady:
		return &Text{Word: Steady, Text: steady(a), Notes: growthNotes(r)}
	}
	return &Text{Word: Unknown, Text: unknown(a), Notes: append(growthNotes(a.Leaks), boundedNote(a.Bounded)...)}
}

// boundedWidth is the maximum width of the name of a container that explains a rise, characters.
const boundedWidth = 48

// boundedNote says which containers explain a rise.
func boundedNote(b *answer.Bounded) []Note {
	if b == nil {
		return nil
	}
	name, was, are := varpath.Fit(b.Holder, boundedWidth), "it was", "it is"
	if b.Others > 0 {
		name, was, are = fmt.Sprintf("%s and %s", name, table.Plural(uint64(b.Others), "other container")), "they were", "they are"
	}
	return []Note{{"fills", fmt.Sprintf("%s had %s of at most %s elements when %s read: %s when %s full",
		name, table.Count(b.Length), table.Count(b.Most), was, table.Bytes(b.Full), are)}}
}

// hostNotes returns what the rows below would say of growth, if they had host memory.
func hostNotes(f *leaks.Finding) []Note {
	if f.Layer != event.LayerHost {
		return nil
	}
	out := []Note{{"live", fmt.Sprintf("%s in %s, allocated since the attach", table.Bytes(f.LiveBytes), table.Plural(f.LiveBlocks, "block"))}}
	if text := f.Advice(); text != "" {
		out = append(out, Note{"advice", text})
	}
	return out
}

// growthNotes returns notes on growth that is too slow to matter, and on growth in a loop that has ended.
func growthNotes(r *leaks.Report) []Note {
	var out []Note
	if text := table.LeakNote(r); text != "" {
		out = append(out, Note{"note", text})
	}
	if text := table.LeakFilling(r); text != "" {
		out = append(out, Note{"fills", text})
	}
	if text := table.LeakLonger(r); text != "" {
		out = append(out, Note{"longer", text})
	}
	if text := table.LeakPast(r); text != "" {
		out = append(out, Note{"before", text})
	}
	if text := table.LeakStopped(r); text != "" {
		out = append(out, Note{"past", text})
	}
	return out
}

// OfGrowth returns the verdict on growth alone, even if a request failed; nil as for Of. The leaks command begins with it.
func OfGrowth(a *answer.Answer) *Text {
	if a.Leaks != nil && a.Leaks.Verdict == leaks.OutOfMemory {
		_, text, _ := strings.Cut(table.LeakSentence(a.Leaks), ": ")
		return &Text{Word: OutOfMemory, Text: text}
	}
	growth := *a
	growth.Case = nil
	return Of(&growth)
}

// OfJob returns the verdicts on the processes of a job, the worst first, and last the one that the other processes are
// steady. j may be nil.
func OfJob(j *answer.Job) (out []Text) {
	if j == nil {
		return nil
	}
	for i := range j.Groups {
		g := &j.Groups[i]
		t := *Of(g.Answer)
		if n := len(g.Processes); n > 1 && t.Word == Steady && len(j.Groups) == 1 {
			t.Text = fmt.Sprintf("nothing grew from step to step in any of %d processes", n)
		} else {
			t.Text = named(g.Which, t.Text)
		}
		out = append(out, t)
	}
	return out
}

// named adds the processes that a text is about, unless the text begins with them.
func named(which, text string) string {
	if strings.HasPrefix(text, which+" ") {
		return text
	}
	return which + ": " + text
}

func outOfMemory(a *answer.Answer) *Text {
	t := &Text{
		Word: OutOfMemory, Text: strings.TrimPrefix(table.OOMHead(a.Case, a.Start), OutOfMemory+"  "),
		Notes: []Note{{"why", why.Text(a.Case)}, {"device", table.OOMDevice(a.Case, a.Start)}},
	}
	if n := a.Failures - 1; n > 0 {
		t.Text += fmt.Sprintf("; %s failed too", table.Plural(uint64(n), "other request"))
		if a.Failed != a.Case.Time {
			t.Text += ", the first at " + table.Offset(a.Failed, a.Start)
		}
	}
	if a.GrowsBesides() {
		t.Notes = append(t.Notes, Note{"grows", growing(a)})
	}
	return t
}

func growing(a *answer.Answer) string {
	f, _ := leaks.Total(a.Leaks.Findings)
	text := table.LeakTotal(a.Leaks.Findings, "")
	if a.Rate > 0 && f.Layer != event.LayerHost {
		text += fmt.Sprintf(": +%s/s", table.MeanBytes(a.Rate))
	}
	text += fmt.Sprintf(", since step %d of %d", f.First, f.Last)
	if a.Since > 0 {
		text += fmt.Sprintf(" (%s)", table.Offset(a.Since, a.Start))
	}
	if !math.IsNaN(a.Seconds) {
		left := ""
		if a.Left > 0 {
			left = table.Bytes(a.Left) + " left: "
		}
		text += fmt.Sprintf("; %s%s%s", left, table.OutIn, table.Span(a.Seconds))
	}
	if allGarbage(a.Leaks.Findings) {
		text += "; all of it is garbage, which Python's cycle collector has not freed so far"
	}
	if f.Confidence == leaks.Low {
		text += "; fewer than 10 periods were seen, and a queue or cache that fills looks the same: record longer"
	}
	return text
}

// allGarbage reports whether all growth is of objects that the program can no longer reach.
func allGarbage(findings []leaks.Finding) bool {
	return !slices.ContainsFunc(findings, func(f leaks.Finding) bool { return !advice.IsGarbage(f.Holder) })
}

func steady(a *answer.Answer) string {
	s := &a.Leaks.Steps
	text := fmt.Sprintf("%s grew from step to step in %s", table.LeakNothing(a.Leaks), table.Plural(uint64(s.Count), "step"))
	if s.Period > 0 {
		text += fmt.Sprintf(" of %s", table.Duration(time.Duration(s.Period)))
	}
	switch p := a.Peaks; {
	case a.High == 0:
	case p.Last > 0:
		text += fmt.Sprintf("; %s between steps; the peak of a step rose from %s to %s",
			table.Bytes(a.Between), table.Bytes(p.First), table.Bytes(p.Last))
	default:
		text += fmt.Sprintf("; %s between steps, %s at the peak of a step", table.Bytes(a.Between), table.Bytes(a.High))
	}
	return text
}

func unknown(a *answer.Answer) string {
	r := a.Leaks
	_, why, _ := strings.Cut(table.LeakSentence(r), ": ")
	risen := risen(a)
	if r.Steps.Rise > 0 && len(r.Suspects) == 0 && len(r.Risers) == 0 && risen != "" {
		why = "No line of it grows by equal steps: --step-on FUNCTION says where a step begins"
	}
	if risen != "" {
		why = risen + capital(why)
	}
	return why
}

// capital capitalises the beginning of a sentence, except for a line of code such as "train.py:34".
func capital(text string) string {
	if first, _, _ := strings.Cut(text, " "); text == "" || strings.Contains(first, ":") {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// risen returns how much more is in use at the end than at the beginning of the recording, if it is at least a tenth more.
func risen(a *answer.Answer) string {
	before, now := a.First, a.Last
	if now <= before || now-before < before/10 || a.Length() <= 0 {
		return ""
	}
	if quiet := time.Duration(a.Quiet); 2*quiet >= a.Length() {
		return fmt.Sprintf("PyTorch's blocks rose from %s to %s, and have not changed for %s. ", table.Bytes(before), table.Bytes(now),
			table.Duration(quiet))
	}
	return fmt.Sprintf("PyTorch's blocks rose from %s to %s, +%s/s. ", table.Bytes(before), table.Bytes(now),
		table.MeanBytes(float64(now-before)/a.Length().Seconds()))
}
