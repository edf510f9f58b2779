// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// RecordingInput names a recording.
type RecordingInput struct {
	Recording string `json:"recording" jsonschema:"path of a folder that gputrace record or run wrote, or of a trace.gputrace"`
}

// WhoInput is the input of who_holds.
type WhoInput struct {
	PID int    `json:"pid" jsonschema:"the process"`
	By  string `json:"by,omitempty" jsonschema:"a row for each owner (default), module, dtype, shape or category"`
	Top int    `json:"top,omitempty" jsonschema:"number of rows, 10 by default, 50 at most"`
}

// RecordInput is the input of record.
type RecordInput struct {
	PID      int  `json:"pid" jsonschema:"the process"`
	Seconds  int  `json:"seconds,omitempty" jsonschema:"how long, 10 by default, 120 at most"`
	Children bool `json:"children,omitempty" jsonschema:"also the processes that it has started: ranks of torchrun, workers of a DataLoader"`
}

// DrillInput is the input of drill_down.
type DrillInput struct {
	Recording string `json:"recording" jsonschema:"path of a recording of one process"`
	By        string `json:"by,omitempty" jsonschema:"line (default), function, stack, holder, category, phase, module, op or device"`
	At        string `json:"at,omitempty" jsonschema:"moment: end (default; before an ended program freed all), peak, 12.5s, step:12, oom"`
	From      string `json:"from,omitempty" jsonschema:"only what was allocated after this moment"`
	To        string `json:"to,omitempty" jsonschema:"only what was allocated up to this moment"`
	Match     string `json:"match,omitempty" jsonschema:"only rows that contain this text"`
	Top       int    `json:"top,omitempty" jsonschema:"number of rows, 10 by default, 50 at most"`
}

// FailureInput is the input of why_out_of_memory.
type FailureInput struct {
	Recording string `json:"recording" jsonschema:"path of a recording, or of the folder of a job"`
	Number    int    `json:"number,omitempty" jsonschema:"which failure, from 1 on (default: the one that ended the program, else the last)"`
	Top       int    `json:"top,omitempty" jsonschema:"number of rows of memory in use, 10 by default, 50 at most"`
}

// CompareInput is the input of compare.
type CompareInput struct {
	Before string   `json:"before" jsonschema:"path of a recording"`
	After  string   `json:"after,omitempty" jsonschema:"path of another recording (default: before again, at the moments of at)"`
	At     []string `json:"at,omitempty" jsonschema:"one moment for both sides, or two: end (default), peak, 12.5s, step:12"`
	By     string   `json:"by,omitempty" jsonschema:"line (default), function, stack, holder, category, phase, module, op or device"`
	Top    int      `json:"top,omitempty" jsonschema:"number of rows, 10 by default, 50 at most"`
}

// Processes is the answer of list_processes.
type Processes struct {
	Sentence  string    `json:"sentence"`
	Processes []Process `json:"processes"`
	NotSeen   []string  `json:"not_seen" jsonschema:"what could not be seen, and why"`
	Missing   []string  `json:"missing,omitempty"`
	Hidden    int       `json:"hidden"`
}

// Process is a process that uses a GPU.
type Process struct {
	PID        int      `json:"pid"`
	User       *string  `json:"user"`
	Container  *string  `json:"container"`
	Command    []string `json:"command"`
	Frameworks []string `json:"frameworks"`
	Devices    []Device `json:"devices"`
	Why        *string  `json:"why" jsonschema:"what of its memory is not known, and why"`
}

// Device is what a process has of a device.
type Device struct {
	Device    *int    `json:"device"`
	Driver    *uint64 `json:"driver,omitempty" jsonschema:"as nvidia-smi shows it"`
	Allocated *uint64 `json:"allocated" jsonschema:"in tensors, by PyTorch's allocator"`
	Reserved  *uint64 `json:"reserved" jsonschema:"by PyTorch's allocator"`
}

// Holders is the answer of who_holds.
type Holders struct {
	Sentence string       `json:"sentence"`
	PID      int          `json:"pid"`
	Devices  []Device     `json:"devices"`
	Totals   []Category   `json:"totals" jsonschema:"memory in use by what it is for"`
	Rows     []Held       `json:"rows"`
	More     int          `json:"more_rows"`
	Unknown  []WhyUnknown `json:"unknown" jsonschema:"memory whose holder was not found"`
}

// Category is memory for one purpose.
type Category struct {
	Name   string `json:"category"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// Held is what one holder has.
type Held struct {
	Name    string  `json:"name"`
	Where   string  `json:"where,omitempty"`
	What    string  `json:"what,omitempty"`
	Tensors string  `json:"tensors,omitempty"`
	Bytes   uint64  `json:"bytes"`
	Blocks  uint64  `json:"blocks"`
	Share   float64 `json:"share"`
}

// WhyUnknown is memory without a known holder.
type WhyUnknown struct {
	Why    string `json:"why"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// Verdict is the answer of verdict and record: the first screen of a recording or, of a job, of each of its processes.
type Verdict struct {
	Recording string   `json:"recording"`
	Sentences []string `json:"sentences,omitempty" jsonschema:"of a job: a sentence for each group of its processes"`
	Screen
	Processes []Screen `json:"processes,omitempty" jsonschema:"of a job: its processes"`
}

// Screen is the first screen of a recording.
type Screen struct {
	Folder   string      `json:"folder,omitempty"`
	Sentence string      `json:"sentence,omitempty"`
	Verdict  string      `json:"verdict,omitempty" jsonschema:"growing, steady, out_of_memory or unknown"`
	Notes    []Note      `json:"notes,omitempty" jsonschema:"what is printed below the sentence"`
	Program  *string     `json:"program,omitempty"`
	PID      *uint32     `json:"pid,omitempty"`
	Seconds  float64     `json:"seconds,omitempty"`
	Lost     *uint64     `json:"events_lost,omitempty"`
	Now      uint64      `json:"now_bytes,omitempty"`
	Peak     uint64      `json:"peak_bytes,omitempty"`
	Reserved *uint64     `json:"reserved_bytes,omitempty"`
	Rate     *float64    `json:"growth_bytes_per_second,omitempty"`
	Full     *float64    `json:"seconds_to_limit,omitempty"`
	Findings []Finding   `json:"findings,omitempty" jsonschema:"the lines that grow from step to step"`
	When     string      `json:"rows_at,omitempty" jsonschema:"the moment of the rows: end, peak, failure or exit"`
	Rows     []ScreenRow `json:"rows,omitempty" jsonschema:"what holds memory at that moment, and the line that allocated it"`
}

// Note is a line below the sentence.
type Note struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Finding is a line that grows.
type Finding struct {
	File       *string  `json:"file"`
	Line       *int     `json:"line"`
	Function   string   `json:"function"`
	Holder     *string  `json:"holder"`
	Bytes      float64  `json:"block_bytes_per_step"`
	Blocks     float64  `json:"blocks_per_step"`
	First      int      `json:"first_step"`
	Last       int      `json:"last_step"`
	Live       uint64   `json:"live_bytes"`
	Share      *float64 `json:"share_of_growth"`
	Confidence string   `json:"confidence"`
	Advice     *string  `json:"advice"`
	Stack      []Call   `json:"stack" jsonschema:"leaf first, shortened"`
}

// Call is a frame of a stack.
type Call struct {
	Name     string `json:"name"`
	Function string `json:"function,omitempty"`
}

// ScreenRow is what one thing holds.
type ScreenRow struct {
	Holder   *string    `json:"holder"`
	Category *string    `json:"category"`
	Bytes    int64      `json:"bytes"`
	Blocks   *uint64    `json:"blocks"`
	Share    float64    `json:"share"`
	Advice   *string    `json:"advice,omitempty"`
	Lines    []LineText `json:"lines"`
}

// LineText is a line of a program.
type LineText struct {
	Name     string  `json:"name"`
	Function *string `json:"function"`
	Source   *string `json:"source"`
	Bytes    int64   `json:"bytes"`
}

// Rows is the answer of drill_down.
type Rows struct {
	Sentence    string `json:"sentence"`
	By          string `json:"by"`
	At          string `json:"at"`
	InUse       int64  `json:"in_use_bytes" jsonschema:"of all rows, also those not listed"`
	InRows      int    `json:"in_use_rows"`
	Matched     int64  `json:"matched_bytes"`
	MatchedRows int    `json:"matched_rows"`
	Rows        []Row  `json:"rows"`
}

// Row is a row of a table. The name of a stack is all of its frames, root first.
type Row struct {
	Name   string `json:"name"`
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Bytes  int64  `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// Failures are all requests that failed.
type Failures struct {
	Main      *int      `json:"main"`
	OOMs      []Failure `json:"ooms"`
	More      int       `json:"more"`
	Recovered int       `json:"recovered"`
}

// Failure is the answer of why_out_of_memory.
type Failure struct {
	Sentence    string        `json:"sentence"`
	Failed      int           `json:"failed" jsonschema:"how many requests failed in the recording"`
	Recovered   int           `json:"recovered" jsonschema:"requests that PyTorch satisfied after the driver had refused them"`
	Number      int           `json:"number,omitempty"`
	Decision    string        `json:"decision,omitempty"`
	Text        string        `json:"decision_text,omitempty"`
	PID         uint32        `json:"pid,omitempty"`
	Step        *int          `json:"step,omitempty"`
	Phase       *string       `json:"phase,omitempty"`
	Device      string        `json:"device,omitempty"`
	Site        string        `json:"site,omitempty" jsonschema:"the line that asked"`
	Requested   *uint64       `json:"requested_bytes,omitempty"`
	Need        *uint64       `json:"missing_bytes,omitempty" jsonschema:"how much more had to be free"`
	Caught      *bool         `json:"caught,omitempty" jsonschema:"the program went on"`
	Allocated   *uint64       `json:"allocated,omitempty"`
	Reserved    *uint64       `json:"reserved,omitempty"`
	Limit       *uint64       `json:"limit,omitempty"`
	DeviceTotal *uint64       `json:"device_total,omitempty"`
	DeviceFree  *uint64       `json:"device_free,omitempty"`
	Others      *uint64       `json:"other_processes,omitempty"`
	LargestFree *uint64       `json:"largest_free,omitempty"`
	Causes      []Cause       `json:"causes,omitempty"`
	Categories  []Category    `json:"categories,omitempty" jsonschema:"memory in use when it failed, by what it is for"`
	Top         []FailureHeld `json:"top,omitempty" jsonschema:"memory in use when it failed, by line and holder"`
	Stack       []Call        `json:"stack,omitempty" jsonschema:"of the request, leaf first, shortened"`
}

// Cause is what took memory that the request needed.
type Cause struct {
	Cause string  `json:"cause"`
	Bytes *uint64 `json:"bytes"`
	Alone *bool   `json:"suffices_alone" jsonschema:"without it alone the request would have fitted"`
}

// FailureHeld is memory in use when a request failed.
type FailureHeld struct {
	Site   string  `json:"site"`
	Holder *string `json:"holder"`
	Bytes  uint64  `json:"bytes"`
	Blocks uint64  `json:"blocks"`
}

// Difference is the answer of compare.
type Difference struct {
	Verdict  string    `json:"verdict" jsonschema:"the sentence"`
	By       string    `json:"by"`
	Bytes    int64     `json:"bytes" jsonschema:"after minus before"`
	Before   Side      `json:"before"`
	After    Side      `json:"after"`
	Rows     []Changed `json:"rows"`
	More     int       `json:"more_rows"`
	Verdicts *Verdicts `json:"verdicts,omitempty" jsonschema:"whether memory grows, in each"`
	Findings []Grows   `json:"findings,omitempty" jsonschema:"what grows from step to step in either; null: not in this one"`
}

// Verdicts are the verdicts on two recordings.
type Verdicts struct {
	Before string `json:"before"`
	After  string `json:"after"`
}

// Grows is a line that grows in one recording or in both.
type Grows struct {
	Before *Finding `json:"before"`
	After  *Finding `json:"after"`
}

// Side is what was compared.
type Side struct {
	What  string `json:"what"`
	Bytes int64  `json:"bytes"`
}

// Changed is a row that changed.
type Changed struct {
	Bytes  int64    `json:"bytes" jsonschema:"after minus before"`
	Blocks *int64   `json:"blocks"`
	Before *SideRow `json:"before" jsonschema:"null: it is new"`
	After  *SideRow `json:"after" jsonschema:"null: it was removed"`
}

// SideRow is a row of one side.
type SideRow struct {
	Name     string `json:"name"`
	Function string `json:"function,omitempty"`
	Source   string `json:"source,omitempty"`
	Bytes    int64  `json:"bytes"`
}

// How much of an answer is returned.
const (
	maxCalls     = 8   // frames of a stack
	maxFindings  = 8   // lines that grow
	maxLines     = 3   // lines of a row
	maxProcesses = 16  // processes of a job, the first ones
	maxStackText = 600 // bytes of a stack in one line
)

// fit cuts a text in the middle: of a stack the leaf and the root are worth most.
func fit(text string, n int) string {
	if len(text) <= n {
		return text
	}
	head, tail := n*2/3, n/3
	for !utf8.RuneStart(text[head]) {
		head--
	}
	for !utf8.RuneStart(text[len(text)-tail]) {
		tail--
	}
	return text[:head] + " ... " + text[len(text)-tail:]
}

// calls keeps the frames of a stack that are nearest to the leaf, only Python frames if there are any.
func calls(all []Call) []Call {
	native := func(c Call) bool { return c.Function == "" }
	if python := slices.DeleteFunc(slices.Clone(all), native); len(python) > 0 {
		all = python
	}
	return append([]Call{}, all[:min(maxCalls, len(all))]...)
}

// fewer leaves out the last fifth of rows, at least one, and reports how many; 0: there is only one left.
func fewer[T any](rows *[]T) int {
	n := min((len(*rows)+4)/5, len(*rows)-1)
	*rows = (*rows)[:len(*rows)-max(n, 0)]
	return max(n, 0)
}

// cut leaves out rows; false: there is nothing more to leave out. The other types have it too.
func (a *Rows) cut() bool { return fewer(&a.Rows) > 0 }

func (a *Processes) cut() bool { return fewer(&a.Processes) > 0 }

func (h *Holders) cut() bool {
	n := fewer(&h.Rows)
	h.More += n
	return n > 0
}

func (d *Difference) cut() bool {
	n := fewer(&d.Rows)
	d.More += n
	return n > 0 || fewer(&d.Findings) > 0
}

func (f *Failure) cut() bool { return fewer(&f.Top) > 0 || fewer(&f.Stack) > 0 }

func (v *Verdict) cut() bool {
	return fewer(&v.Processes) > 0 || fewer(&v.Findings) > 0 || fewer(&v.Rows) > 0
}

func (f *Finding) shorten() {
	if f != nil {
		f.Stack = calls(f.Stack)
	}
}

func (s *Screen) shorten() {
	s.Findings = s.Findings[:min(maxFindings, len(s.Findings))]
	for i := range s.Findings {
		s.Findings[i].shorten()
	}
	for i := range s.Rows {
		r := &s.Rows[i]
		r.Lines = append([]LineText{}, r.Lines[:min(maxLines, len(r.Lines))]...)
	}
}

func (v *Verdict) shorten() {
	v.Screen.shorten()
	v.Processes = v.Processes[:min(maxProcesses, len(v.Processes))]
	for i := range v.Processes {
		v.Processes[i].shorten()
		if i > 0 { // the others are asked for one by one
			v.Processes[i].Rows = nil
		}
	}
}

// text returns what a person is shown: the sentence, and the notes and the advice below it.
func (v *Verdict) text() string {
	lines := slices.Clone(v.Sentences)
	if v.Sentence != "" {
		lines = append(lines, v.Sentence)
	}
	for _, n := range v.Notes {
		lines = append(lines, n.Name+": "+n.Text)
	}
	for i := range v.Findings {
		f := &v.Findings[i]
		if f.Holder != nil {
			lines = append(lines, "held by "+*f.Holder)
		}
		if f.Advice != nil {
			lines = append(lines, "advice: "+*f.Advice)
		}
	}
	return strings.Join(slices.Compact(lines), "\n")
}

func (f *Failure) shorten(top int) {
	f.Top = f.Top[:min(top, len(f.Top))]
	f.Stack = calls(f.Stack)
}

func (d *Difference) shorten(top int) {
	d.Rows = slices.DeleteFunc(d.Rows, func(c Changed) bool { return c.Bytes == 0 })
	n := min(top, len(d.Rows))
	d.Rows, d.More = d.Rows[:n], len(d.Rows)-n
	for i := range d.Findings {
		d.Findings[i].Before.shorten()
		d.Findings[i].After.shorten()
	}
}
