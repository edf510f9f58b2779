// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/table"
)

// How many findings, and live blocks at a request that failed, a page begins with.
const (
	pageFindings = 4
	pageHoldings = 3
)

// pageVerdict is what a page begins with, and the steps. Of what was not recorded by gputrace there is no verdict.
func pageVerdict(in *Input) (*html.Verdict, html.Steps, error) {
	if in.source == nil || in.Info.PID == 0 {
		return nil, html.Steps{}, nil
	}
	failed, err := in.source.OOM()
	if err != nil {
		return nil, html.Steps{}, err
	}
	report, err := in.source.Leaks()
	if err != nil {
		return nil, html.Steps{}, err
	}
	found, err := in.source.Steps()
	if err != nil {
		return nil, html.Steps{}, err
	}
	if c := failed.Main(); c != nil {
		v := oomVerdict(in, c)
		if report.Verdict == leaks.Growing && c.Decision != oom.Leak { // else the sentence says it
			v.Findings = append(v.Findings, leakFindings(report)...)
		}
		return v, pageSteps(found), nil
	}
	return leakVerdict(report), pageSteps(found), nil
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

// verdictWords are what a verdict is called, and how good or bad it is.
var verdictWords = map[leaks.Verdict]struct {
	kind html.VerdictKind
	word string
}{
	leaks.Growing: {html.VerdictGrowing, "GROWING"}, leaks.Steady: {html.VerdictGood, "STEADY"},
	leaks.OutOfMemory: {html.VerdictBad, "OUT OF MEMORY"}, leaks.Unclear: {html.VerdictUnknown, "UNKNOWN"},
}

func leakVerdict(r *leaks.Report) *html.Verdict {
	w := verdictWords[r.Verdict]
	text := table.LeakSentence(r)
	if _, rest, ok := strings.Cut(text, ": "); ok { // its word is the page's own
		text = rest
	}
	return &html.Verdict{Kind: w.kind, Word: w.word, Text: text, Findings: leakFindings(r)}
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

func oomVerdict(in *Input, c *oom.Case) *html.Verdict {
	at := clockOf(in.source)
	when := fmt.Sprintf("at %+.3f s", time.Duration(c.Time-min(at.attached, c.Time)).Seconds())
	if c.Step > 0 {
		when += fmt.Sprintf(", step %d", c.Step)
	}
	v := &html.Verdict{Kind: html.VerdictBad, Word: "OUT OF MEMORY", Text: when + ": " + table.OOMText(c)}
	if c.Caught == oom.Yes {
		v.Text += ". The program caught it and went on"
	}
	for i := range c.Top[:min(pageHoldings, len(c.Top))] {
		h := &c.Top[i]
		to := html.Finding{Title: fmt.Sprintf("%s %s", table.Bytes(h.Bytes), h.Site), Search: strings.SplitN(h.Site, " ", 2)[0]}
		if h.Holder != "" && h.Holder != view.NoHolder {
			to.Lines = append(to.Lines, "held by "+h.Holder)
		}
		to.Lines = append(to.Lines, fmt.Sprintf("%s, %s", blocksOf(h.Objects), h.Category))
		v.Findings = append(v.Findings, to)
	}
	return v
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
	for _, d := range driverOf(in.End) {
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
