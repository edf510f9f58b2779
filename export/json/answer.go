// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/sleep"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// answerVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const answerVersion = 1

// Answer is the first screen of a recording, in the words of package verdict.
type Answer struct {
	Answer   *answer.Answer
	Folder   string // of the recording, in the folder of its job; empty: the recording is not part of a job
	Verdict  string // "growing", "steady", "out_of_memory", "unknown"
	Sentence string
	Notes    []AnswerNote // printed below the sentence
	Program  string       // "train.py --steps 20"; empty: not known
	PID      uint32       // 0: not known
	Cut      bool         // the recording was cut off
	Lost     uint64       // number of lost events; event.Unknown
	Gaps     uint64       // steps of the allocators' totals that no event explains
	Losses   uint64       // times in which events were lost
}

// AnswerNote is a line below the sentence of a verdict, such as "why" or "device".
type AnswerNote struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

type answerFile struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	answerBody
}

type answerOfJobFile struct {
	Format    string       `json:"format"`
	Version   int          `json:"version"`
	Sentences []string     `json:"sentences"`
	Processes []answerBody `json:"processes"`
}

// answerBody has null where something is not known.
type answerBody struct {
	Folder   string         `json:"folder,omitempty"`
	Verdict  string         `json:"verdict"`
	Sentence string         `json:"sentence"`
	Notes    []AnswerNote   `json:"notes"`
	Program  *string        `json:"program"`
	PID      *uint32        `json:"pid"`
	Seconds  float64        `json:"seconds"`
	Events   uint64         `json:"events"`
	Lost     *uint64        `json:"events_lost"`
	Gaps     uint64         `json:"gaps"`
	Losses   uint64         `json:"loss_intervals"`
	Cut      bool           `json:"cut_off"`
	Now      uint64         `json:"now_bytes"`
	Peak     uint64         `json:"peak_bytes"`
	PeakAt   *float64       `json:"peak_seconds"`
	Reserved *uint64        `json:"reserved_bytes"`
	Asleep   uint64         `json:"asleep_bytes"`   // part of now_bytes whose memory was released while PyTorch kept the addresses
	Released uint64         `json:"released_bytes"` // the same part of reserved_bytes
	Sleep    []answerSleep  `json:"sleep"`          // the times in which memory was released
	Rate     *float64       `json:"growth_bytes_per_second"`
	Full     *float64       `json:"seconds_to_limit"`
	Steps    leakSteps      `json:"steps"`
	Findings []leakFinding  `json:"findings"`
	When     string         `json:"rows_at"`
	Total    int64          `json:"rows_total_bytes"`
	Rows     []answerRow    `json:"rows"`
	Rest     []answerRest   `json:"rest"`
	Serving  *answerServing `json:"serving"` // rows_total_bytes of a server of language models, by use; null: there is no KV cache
}

// answerServing divides the memory of a server of language models.
type answerServing struct {
	Weights     int64 `json:"weights_bytes"`
	Cache       int64 `json:"kv_cache_bytes"`
	Activations int64 `json:"activations_bytes"` // with inputs and temporary memory
	Graphs      int64 `json:"graphs_bytes"`      // allocated while CUDA graphs were captured
	Outside     int64 `json:"outside_bytes"`     // device memory of libraries, outside PyTorch
	Other       int64 `json:"other_bytes"`
}

// answerSleep is one time from the release of memory until all of it was back or its addresses were freed.
type answerSleep struct {
	Device   string   `json:"device"`
	From     float64  `json:"from_seconds"`   // since the beginning of the recording
	To       *float64 `json:"to_seconds"`     // null: it was asleep at the end
	Released uint64   `json:"released_bytes"` // the maximum during this time
	Before   uint64   `json:"before_bytes"`   // memory of the device before
	Stayed   uint64   `json:"stayed_bytes"`   // minimum of the memory of the device during this time
	After    *uint64  `json:"after_bytes"`    // memory of the device afterwards
}

// answerRow is what one thing holds, or what one line allocated.
type answerRow struct {
	Holder   *string      `json:"holder"`
	Category *string      `json:"category"`
	Bytes    int64        `json:"bytes"`
	Blocks   *uint64      `json:"blocks"`
	Share    float64      `json:"share"`
	Rate     *float64     `json:"growth_bytes_per_second"`
	Advice   *string      `json:"advice"`
	Lines    []answerLine `json:"lines"`
}

type answerLine struct {
	Name     string  `json:"name"`
	File     *string `json:"file"`
	Line     *int    `json:"line"`
	Function *string `json:"function"`
	Source   *string `json:"source"`
	Bytes    int64   `json:"bytes"`
}

type answerRest struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// answerLines is the maximum number of lines of a row that are written: a row of many lines is named by its holder.
const answerLines = 5

// momentsOfRows are the names of the moments of rows, for programs.
var momentsOfRows = map[answer.When]string{
	answer.AtEnd: "end", answer.AtPeak: "peak", answer.AtFailure: "failure", answer.AtExit: "exit", answer.EachAtItsOwn: "each at its own",
}

// WriteAnswer writes the first screen of a recording.
func WriteAnswer(w io.Writer, a *Answer) error {
	return writeAnswer(w, answerFile{"gputrace answer", answerVersion, *answerBodyOf(a)})
}

// WriteAnswerOfJob writes the sentences of a job, and the first screen of each of its processes.
func WriteAnswerOfJob(w io.Writer, sentences []string, processes []Answer) error {
	f := answerOfJobFile{"gputrace answer of job", answerVersion, append([]string{}, sentences...), []answerBody{}}
	for i := range processes {
		f.Processes = append(f.Processes, *answerBodyOf(&processes[i]))
	}
	return writeAnswer(w, f)
}

func writeAnswer(w io.Writer, file any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(file); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

func answerBodyOf(in *Answer) *answerBody {
	a := in.Answer
	out := &answerBody{
		Folder: in.Folder, Verdict: in.Verdict, Sentence: in.Sentence, Notes: append([]AnswerNote{}, in.Notes...),
		Program: textOrNull(in.Program),
		PID:     countOrNull(in.PID), Seconds: a.Length().Seconds(), Events: a.Events, Lost: knownOrNull(in.Lost),
		Gaps: in.Gaps, Losses: in.Losses, Cut: in.Cut, Now: a.Now, Peak: a.Peak,
		Reserved: knownOrNull(a.Reserved), Rate: countOrNull(a.Rate), Full: numberOrNull(a.Seconds),
		Findings: []leakFinding{}, When: momentsOfRows[a.When], Asleep: a.Asleep, Released: a.Released, Sleep: []answerSleep{},
		Total: a.Total, Rows: []answerRow{}, Rest: []answerRest{},
	}
	if a.PeakTime > 0 {
		at := (float64(a.PeakTime) - float64(a.Start)) / 1e9
		out.PeakAt = &at
	}
	if growth := leaksBodyOf(a.Leaks, ""); growth != nil {
		out.Steps, out.Findings = growth.Steps, growth.Findings
	}
	for i := range a.Rows {
		out.Rows = append(out.Rows, answerRowOf(&a.Rows[i]))
	}
	if s := a.Serving; s != nil {
		serving := answerServing(*s)
		out.Serving = &serving
	}
	for i := range a.Sleep {
		out.Sleep = append(out.Sleep, answerSleepOf(&a.Sleep[i], a.Start))
	}
	for _, s := range a.Rest {
		out.Rest = append(out.Rest, answerRest{s.Name, s.Bytes})
	}
	return out
}

func answerSleepOf(c *sleep.Cycle, start uint64) answerSleep {
	at := func(time uint64) float64 { return (float64(time) - float64(start)) / 1e9 }
	out := answerSleep{Device: c.Device.String(), From: at(c.From), Released: c.Released, Before: c.Before, Stayed: c.Stayed}
	if c.To != 0 {
		to := at(c.To)
		out.To, out.After = &to, &c.After
	}
	return out
}

func answerRowOf(r *answer.Row) answerRow {
	out := answerRow{
		Holder: textOrNull(r.Holder), Bytes: r.Bytes, Blocks: countOrNull(r.Blocks), Share: r.Share,
		Rate: countOrNull(r.Rate), Lines: []answerLine{},
	}
	if r.Category != phases.NoCategory {
		out.Category = textOrNull(string(r.Category))
	}
	if r.Finding != nil {
		out.Advice = textOrNull(r.Finding.Advice())
	}
	for i := range r.Lines[:min(answerLines, len(r.Lines))] {
		out.Lines = append(out.Lines, answerLineOf(&r.Lines[i]))
	}
	return out
}

func answerLineOf(l *view.Row) answerLine {
	return answerLine{l.Name, textOrNull(l.File), countOrNull(l.Line), textOrNull(l.Func), textOrNull(l.Source), l.Bytes}
}

// knownOrNull is null for event.Unknown.
func knownOrNull(n uint64) *uint64 {
	if n == event.Unknown {
		return nil
	}
	return &n
}
