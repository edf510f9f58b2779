// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
)

// How many findings, and live blocks at a request that failed, a page begins with.
const (
	pageFindings = 4
	pageHoldings = 3
)

// pageVerdict returns what a page begins with, and the steps. Of what was not recorded by gputrace there is no verdict.
func pageVerdict(in *Input) (*html.Verdict, html.Steps, error) {
	if in.source == nil || in.Info.PID == 0 {
		return nil, html.Steps{}, nil
	}
	a, err := in.source.Answer()
	if err != nil {
		return nil, html.Steps{}, err
	}
	found, err := in.source.Steps()
	if err != nil {
		return nil, html.Steps{}, err
	}
	return verdictOf(a), pageSteps(found), nil
}

func pageSteps(t *steps.Table) html.Steps {
	out := html.Steps{On: t.On, First: t.First()}
	for n := t.First(); n > 0 && n <= t.Last(); n++ {
		from, _, ok := t.Span(n)
		if !ok {
			break
		}
		out.Begin = append(out.Begin, from)
	}
	return out
}

// verdictKinds are how good or bad the words of verdicts are.
var verdictKinds = map[string]html.VerdictKind{
	verdict.Growing: html.VerdictGrowing, verdict.Steady: html.VerdictGood, verdict.OutOfMemory: html.VerdictBad,
	verdict.Unknown: html.VerdictUnknown,
}

// VerdictKind returns how good or bad a word of a verdict is, such as verdict.Growing.
func VerdictKind(word string) html.VerdictKind { return verdictKinds[word] }

// verdictOf is the verdict of an answer as a page shows it.
func verdictOf(a *answer.Answer) *html.Verdict {
	t := verdict.Of(a)
	if t == nil {
		return nil
	}
	v := &html.Verdict{Kind: verdictKinds[t.Word], Word: t.Word, Text: t.Text}
	for _, n := range t.Notes {
		v.Facts = append(v.Facts, html.Fact{Name: n.Name, Value: n.Text})
	}
	for _, s := range verdict.Spare(a) {
		v.Facts = append(v.Facts, html.Fact{Name: strings.ToLower(s.Word), Value: s.Text})
	}
	if a.Case != nil {
		v.Findings = caseFindings(a.Case)
	}
	if a.Growing() && (a.Case == nil || a.Case.Decision != oom.Leak) { // else the sentence says it
		v.Findings = append(v.Findings, leakFindings(a.Leaks)...)
	}
	return v
}

func leakFindings(r *leaks.Report) []html.Finding {
	var out []html.Finding
	named, advice := map[string]bool{}, "" // holders, and what was advised last
	for i := range r.Findings[:min(pageFindings, len(r.Findings))] {
		f := &r.Findings[i]
		to := html.Finding{Title: f.Name(), Search: placeOf(f.File, f.Line, f.Function)}
		again := named[f.Holder]
		switch {
		case f.Holder == "":
		case again:
			to.Lines = append(to.Lines, "held by the same")
		default:
			named[f.Holder] = true
			to.Title = table.LeakHolder(f)
		}
		if i > 0 { // the first is the verdict's sentence, which has its line, too
			if f.Holder != "" && !again {
				to.Lines = append(to.Lines, "allocated at "+f.Name())
			}
			to.Lines = append(to.Lines, table.LeakKeeps(f))
		}
		to.Lines = append(to.Lines, fmt.Sprintf("%s in %s at the end", table.Bytes(f.LiveBytes), blocksOf(f.LiveBlocks)))
		if i == 0 && !math.IsNaN(f.Seconds) { // of all that grows on the device
			to.Lines = append(to.Lines, "full in "+table.LeakLimit(f))
		}
		if a := f.Advice(); a != "" && a != advice {
			to.Lines = append(to.Lines, a)
			advice = a
		}
		out = append(out, to)
	}
	return out
}

// placeOf is what finds a line on the page.
func placeOf(file string, line int, function string) string {
	if file == "" || line == 0 {
		return function
	}
	return fmt.Sprintf("%s:%d", path.Base(file), line)
}

func blocksOf(n uint64) string {
	if n == 1 {
		return "1 block"
	}
	return table.Count(n) + " blocks"
}

// caseFindings are what held the most memory when a request failed.
func caseFindings(c *oom.Case) []html.Finding {
	var out []html.Finding
	for i := range c.Top[:min(pageHoldings, len(c.Top))] {
		h := &c.Top[i]
		to := html.Finding{Title: fmt.Sprintf("%s %s", table.Bytes(h.Bytes), h.Site), Search: strings.SplitN(h.Site, " ", 2)[0]}
		if h.Holder != "" && h.Holder != view.NoHolder {
			to.Lines = append(to.Lines, "held by "+h.Holder)
		}
		to.Lines = append(to.Lines, fmt.Sprintf("%s, %s", blocksOf(h.Objects), h.Category))
		out = append(out, to)
	}
	return out
}

// capacityOf is the memory of the devices, as the driver said it last.
func capacityOf(in *Input) map[event.Device]html.Capacity {
	out := map[event.Device]html.Capacity{}
	readings := in.Trace.Readings()
	for i := range readings {
		for _, d := range readings[i].Driver {
			addCapacity(out, d.Device, uint64(d.Used), uint64(d.Total), uint64(d.All))
		}
	}
	for _, d := range trailer.Driver(in.End) {
		addCapacity(out, d.Device, uint64(d.Used), uint64(d.Total), uint64(d.All))
	}
	return out
}

func addCapacity(out map[event.Device]html.Capacity, device int, used, total, all uint64) {
	if device < 0 || total == event.Unknown || total == 0 {
		return
	}
	others := event.Unknown
	if used != event.Unknown && all != event.Unknown && all >= used {
		others = all - used
	}
	for _, kind := range []event.DeviceType{event.DeviceCUDA, event.DeviceHIP, event.DeviceXPU} {
		out[event.Device{Type: kind, Index: int8(device)}] = html.Capacity{Total: total, Used: used, Others: others}
	}
}
