// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// leaksVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const leaksVersion = 1

type leaksFile struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	leaksBody
}

// leaksBody is the verdict, also in a file of all figures.
type leaksBody struct {
	Verdict  leaks.Verdict `json:"verdict"`
	Sentence string        `json:"sentence,omitempty"` // as people see it; left out where nobody does
	Steps    leakSteps     `json:"steps"`
	Findings []leakFinding `json:"findings"`
	Notes    []leakFinding `json:"notes,omitempty"`   // what grows too slowly to matter; left out where nothing does
	Filling  []leakFinding `json:"filling,omitempty"` // what grows until its container is full, which fits; left out where nothing does
	Longer   []leakFinding `json:"longer,omitempty"`  // longer inputs, and what is computed from them
	Past     []leakFinding `json:"past,omitempty"`    // what grew in loops that have ended; left out where nothing did
	Stopped  []leakFinding `json:"stopped,omitempty"` // what grew in the running loop and no longer does, live_bytes of it; likewise
	Suspect  *leakFinding  `json:"suspect,omitempty"` // left out where nothing is suspected
}

type leakSteps struct {
	Count  *int     `json:"count"`     // null: no steps were found
	Source *string  `json:"source"`    // likewise
	On     *string  `json:"on"`        // likewise
	Period *float64 `json:"period_ms"` // null: not known
	// Slopes are of MPS alone, whose buffers can be larger than what was asked for.
	Slopes *leakSlopes `json:"per_step,omitempty"`
}

// leakSlopes are bytes a step.
type leakSlopes struct {
	Requested float64 `json:"requested_bytes"`
	Blocks    float64 `json:"block_bytes"`
	Reserved  float64 `json:"reserved_bytes"`
}

// leakFinding has null where something is not known.
type leakFinding struct {
	Kind       leaks.Kind       `json:"kind"`
	Layer      string           `json:"layer"`
	Device     string           `json:"device"`
	File       *string          `json:"file"`
	Line       *int             `json:"line"`
	Function   string           `json:"function"`
	Backward   bool             `json:"backward,omitempty"`
	Stack      []diffCall       `json:"stack"`
	Calls      []leakInner      `json:"calls,omitempty"`
	Holder     *string          `json:"holder"`
	Newer      uint64           `json:"holder_newer_blocks"`
	Requested  *float64         `json:"requested_bytes_per_step"`
	Bytes      float64          `json:"block_bytes_per_step"`
	Blocks     float64          `json:"blocks_per_step"`
	Period     int              `json:"period_steps"`
	First      int              `json:"first_step"`
	Last       int              `json:"last_step"`
	LiveBytes  uint64           `json:"live_bytes"`
	LiveBlocks uint64           `json:"live_blocks"`
	Share      *float64         `json:"share_of_growth"`
	Confidence leaks.Confidence `json:"confidence"`
	Seconds    *float64         `json:"seconds_to_limit"`
	Phase      *string          `json:"phase"`
	UsualEnd   *string          `json:"usual_end"`
	Advice     *string          `json:"advice"`
	Bound      *leakBound       `json:"bound,omitempty"` // left out where the holder has none, or it is not known
}

// leakBound is the bound of the containers that hold the blocks of a finding.
type leakBound struct {
	Length uint64 `json:"elements"`
	Most   uint64 `json:"max_elements"`
	Full   uint64 `json:"bytes_when_full"`
}

// leakInner is what a line calls outside PyTorch's core.
type leakInner struct {
	File      string   `json:"file"`
	Line      int      `json:"line"`
	Function  string   `json:"function"`
	Requested *float64 `json:"requested_bytes_per_step"`
	Bytes     float64  `json:"block_bytes_per_step"`
	Blocks    float64  `json:"blocks_per_step"`
}

// WriteLeaks writes the verdict on a recording, with its sentence for people.
func WriteLeaks(w io.Writer, r *leaks.Report, sentence string) error {
	f := leaksFile{Format: "gputrace leaks", Version: leaksVersion, leaksBody: *leaksBodyOf(r, sentence)}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("write the verdict: %w", err)
	}
	return nil
}

// ProcessLeaks is the verdict on one process of a job.
type ProcessLeaks struct {
	Folder   string // of its recording, in that of the job
	Report   *leaks.Report
	Sentence string // of the verdict, for people
}

// processLeaks is what WriteLeaksOfJob writes of a process.
type processLeaks struct {
	Folder string `json:"folder"`
	leaksBody
}

type leaksOfJobFile struct {
	Format    string         `json:"format"`
	Version   int            `json:"version"`
	Processes []processLeaks `json:"processes"`
}

// WriteLeaksOfJob writes the verdicts on the processes of a job.
func WriteLeaksOfJob(w io.Writer, processes []ProcessLeaks) error {
	f := leaksOfJobFile{Format: "gputrace leaks of job", Version: leaksVersion, Processes: []processLeaks{}}
	for _, p := range processes {
		f.Processes = append(f.Processes, processLeaks{p.Folder, *leaksBodyOf(p.Report, p.Sentence)})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("write the verdicts: %w", err)
	}
	return nil
}

// leaksBodyOf is the body of a verdict with its sentence; nil: of none.
func leaksBodyOf(r *leaks.Report, sentence string) *leaksBody {
	if r == nil {
		return nil
	}
	out := &leaksBody{Verdict: r.Verdict, Sentence: sentence, Findings: []leakFinding{}}
	if s := &r.Steps; s.Source != "" {
		source := string(s.Source)
		out.Steps = leakSteps{Count: &s.Count, Source: &source, On: &s.On}
		if s.Period > 0 {
			ms := s.Period / 1e6
			out.Steps.Period = &ms
		}
		if x := s.Slopes; x != nil {
			out.Steps.Slopes = &leakSlopes{x.Requested, x.Blocks, x.Reserved}
		}
	}
	for i := range r.Findings {
		out.Findings = append(out.Findings, leakFindingOf(&r.Findings[i]))
	}
	for i := range r.Notes {
		out.Notes = append(out.Notes, leakFindingOf(&r.Notes[i]))
	}
	for i := range r.Past {
		out.Past = append(out.Past, leakFindingOf(&r.Past[i]))
	}
	for i := range r.Filling {
		out.Filling = append(out.Filling, leakFindingOf(&r.Filling[i]))
	}
	for i := range r.Longer {
		out.Longer = append(out.Longer, leakFindingOf(&r.Longer[i]))
	}
	for i := range r.Stopped {
		out.Stopped = append(out.Stopped, leakFindingOf(&r.Stopped[i]))
	}
	if len(r.Suspects) > 0 {
		f := leakFindingOf(&r.Suspects[0])
		out.Suspect = &f
	}
	return out
}

func leakFindingOf(f *leaks.Finding) leakFinding {
	out := leakFinding{
		Kind: f.Kind, Layer: f.Layer.String(), Device: f.Device.String(), File: textOrNull(f.File), Function: f.Function, Backward: f.Backward,
		Holder: textOrNull(f.Holder), Newer: f.Newer, Requested: numberOrNull(f.Requested), Bytes: f.Bytes, Blocks: f.Blocks, Period: f.Period,
		First: f.First, Last: f.Last, LiveBytes: f.LiveBytes, LiveBlocks: f.LiveBlocks, Share: numberOrNull(f.Share),
		Confidence: f.Confidence, Seconds: numberOrNull(f.Seconds), Advice: textOrNull(f.Advice()), Phase: textOrNull(string(f.Phase)),
		UsualEnd: textOrNull(string(f.UsualEnd)), Stack: []diffCall{},
	}
	if f.Line > 0 {
		out.Line = &f.Line
	}
	if b := f.Bound(); b != nil {
		out.Bound = &leakBound{b.Length, b.Most, b.Full}
	}
	for i := range f.Calls {
		c := &f.Calls[i]
		out.Calls = append(out.Calls, leakInner{c.File, c.Line, c.Function, numberOrNull(c.Requested), c.Bytes, c.Blocks})
	}
	if f.Stack != nil {
		frames := stacks.VisibleFrames(f.Stack)
		for i := range frames {
			out.Stack = append(out.Stack, leakCall(&frames[i]))
		}
	}
	return out
}

func leakCall(frame *event.Frame) diffCall {
	c := view.CallOf(frame)
	return diffCall{c.Name, c.Func, c.File, c.Line}
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func numberOrNull(x float64) *float64 {
	if math.IsNaN(x) {
		return nil
	}
	return &x
}
