// SPDX-License-Identifier: Apache-2.0

// Package top is the live screen: one Screen a second from a recording in progress, a file, or a gputrace elsewhere, and a terminal
// program that shows them. It computes nothing of memory itself: each figure is one of the view's, the heap's or the detector's.
package top

import (
	"cmp"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// Screen is what is known at one moment.
type Screen struct {
	Time      time.Time     `json:"time"`
	Elapsed   float64       `json:"elapsed_s"` // seconds since the attach; where that is not known, since the recording's first event
	Processes []Process     `json:"processes"`
	Memory    Memory        `json:"memory"`
	Rate      float64       `json:"allocations_per_s"`
	Lost      uint64        `json:"events_lost"`
	Verdict   string        `json:"verdict,omitempty"`    // "growing", "steady", "out_of_memory", "unknown"; empty: steps are left off
	Sentence  string        `json:"sentence,omitempty"`   // the verdict for people
	StepCount int           `json:"steps,omitempty"`      // complete ones
	StepTime  float64       `json:"step_ms,omitempty"`    // mean length, milliseconds
	Phases    []PhaseSpan   `json:"phases,omitempty"`     // that began or went on since the screen before, by time: the longest, at most 8
	Tables    map[By][]Row  `json:"tables"`               // by bytes, largest first; without the holders that were not read yet
	Held      *HeldAt       `json:"holders_at,omitempty"` // the reading of which the tables by holder and category are; nil: none yet
	Stacks    []StackOfLine `json:"stacks,omitempty"`     // of the largest lines; of the newest screen only
}

// Line is a line of `gputrace top --json`.
type Line struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	*Screen
}

// Format is the format of a Line; lineVersion changes when a reader of the last version could misunderstand the new one.
const (
	Format      = "gputrace top"
	lineVersion = 1
)

// PhaseSpan is a time in which the process whose steps are counted was in one phase, as phases.Span: it can have begun before the screen
// before. The times are as Screen.Elapsed, seconds.
type PhaseSpan struct {
	Phase string  `json:"phase"`
	From  float64 `json:"from_s"`
	To    float64 `json:"to_s"`
}

// HeldAt is a reading of holders.
type HeldAt struct {
	Time  time.Time `json:"time"`
	Bytes uint64    `json:"bytes"` // that the tables add up to: blocks of the caching allocator whose address is known
}

// Process is one process of a screen.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // "rank 0 (pid 4821)", or the command line
	// Paused says why it does not run: stopped by a signal, held by a debugger, frozen. Empty: it runs.
	Paused string `json:"paused,omitempty"`
}

// Memory is how the memory of all processes adds up, bytes. nil is unknown.
//
//	Used = Allocated + Cached + Other + Unexplained
type Memory struct {
	Allocated   *uint64 `json:"allocated"`      // blocks of the caching allocator
	Cached      *uint64 `json:"cached"`         // of its segments, what no block is in
	Other       uint64  `json:"other"`          // from the driver, by others than the caching allocator, since the attach
	Used        *uint64 `json:"used,omitempty"` // by these processes, as the driver counts, when that was last read
	Unexplained *int64  `json:"unexplained,omitempty"`
	Capacity    *uint64 `json:"capacity,omitempty"` // of the devices
	Peak        *uint64 `json:"peak"`               // largest Allocated; null for several devices or processes
}

// By is what the rows of a table have in common.
type By string

// The tables, in the order in which the screen offers them.
const (
	ByLine     By = "line"
	ByHolder   By = "holder"
	ByCategory By = "category"
	ByPhase    By = "phase"
	ByModule   By = "module"
)

// Tables are all of them.
var Tables = []By{ByLine, ByHolder, ByCategory, ByPhase, ByModule}

// maxRows is how many rows a table has at most; the last one is then the rest.
const maxRows = 50

// Row is memory in use that has something in common.
type Row struct {
	Name     string   `json:"name"` // "train.py:41", a holder, a category
	Function string   `json:"function,omitempty"`
	File     string   `json:"file,omitempty"`
	Line     int      `json:"line,omitempty"`
	Source   string   `json:"source,omitempty"` // text of the line
	Bytes    int64    `json:"bytes"`
	Blocks   uint64   `json:"blocks"`
	Peak     *int64   `json:"peak,omitempty"`     // Bytes when the device's memory was at its peak; nil: not known
	Age      *float64 `json:"age_s,omitempty"`    // seconds for which the row has been in use, as far as it was seen; nil: not known
	PerStep  *float64 `json:"per_step,omitempty"` // block bytes that each step adds, by the verdict; nil: no growth is proved
	Holder   string   `json:"held_by,omitempty"`  // of PerStep
	Category string   `json:"category,omitempty"` // of a holder
	Rest     bool     `json:"rest,omitempty"`     // all smaller rows together
}

// StackOfLine is one of the stacks of a row by line.
type StackOfLine struct {
	Row    string   `json:"row"`   // Row.Key
	Bytes  int64    `json:"bytes"` // in use
	Blocks uint64   `json:"blocks"`
	Frames []string `json:"frames"` // leaf first
	Python []int    `json:"python"` // which of Frames are Python's
}

// Key tells a row from others of its table, and finds it in other screens: what grows has another range in its name each time.
func (r *Row) Key() string { return varpath.Key(r.Name) + "\x00" + r.Function + "\x00" + r.File }

// Part is what one process adds to a Screen.
type Part struct {
	Process Process
	View    *view.View
	Totals  *heap.Totals
	Joined  *view.Joined        // nil: holders were not read yet
	Leaks   *leaks.Report       // nil: not known
	Driver  []figures.DriverUse // as last read
	Peak    *Peak               // nil: what was at the peak is looked up each time
	Phases  []PhaseSpan
}

// maxPhases is how many phases a screen has at most. A column of the curve has two screens or more, and a phase of
// its own takes half of it.
const maxPhases = 8

// takePhases takes what is new of the phases of a process. zero is when Screen.Elapsed is 0, on the clock of the events.
func takePhases(s *phases.Spans, zero uint64) []PhaseSpan {
	seconds := func(at uint64) float64 { return float64(int64(at-zero)) / 1e9 }
	var out []PhaseSpan
	for _, span := range s.Take(maxPhases) {
		out = append(out, PhaseSpan{string(span.Phase), seconds(span.From), seconds(span.To)})
	}
	return out
}

// peakEvery is how often what was at a peak is looked up again, whose stacks can have got names since.
const peakEvery = 10 * time.Second

// Peak keeps what was in use at the peak of a process, until there is a higher one: to look it up costs as much as all the rest.
type Peak struct {
	read  time.Time
	bytes uint64
	kept  []view.Row
}

// entries is what was in use at the peak.
func (p *Peak) entries(v *view.View, now time.Time) []view.Row {
	if p == nil {
		return v.AtPeak().Rows()
	}
	bytes := uint64(0)
	for i := range v.Snapshot.Totals.Accounts {
		bytes += v.Snapshot.Totals.Accounts[i].Peak
	}
	if p.kept == nil || bytes != p.bytes || now.Sub(p.read) >= peakEvery {
		p.read, p.bytes, p.kept = now, bytes, v.AtPeak().Rows()
	}
	return p.kept
}

// Add puts the parts of all processes together. Time, Elapsed, Rate, Lost and Held are the caller's.
func (s *Screen) Add(parts []Part) {
	var now, peak []view.Row
	for i := range parts {
		p := &parts[i]
		s.Processes = append(s.Processes, p.Process)
		now = append(now, p.View.Rows()...)
		peak = append(peak, p.Peak.entries(p.View, s.Time)...)
	}
	s.Memory = memoryOf(parts)
	s.Tables = map[By][]Row{}
	growth := growthOf(parts)
	for by, kind := range map[By]view.RowKind{ByLine: view.ByLine, ByPhase: view.ByPhase, ByModule: view.ByModule} {
		s.Tables[by] = rowsOf(now, peak, kind)
	}
	held(s, parts)
	for by, rows := range s.Tables {
		for i := range rows {
			if g := growth[growthKey{by, varpath.Key(rows[i].Name)}]; g != nil {
				rows[i].PerStep, rows[i].Holder = &g.bytes, g.holder
			}
		}
		s.Tables[by] = shorten(rows)
	}
	s.Stacks = stacksOf(now, s.Tables[ByLine])
	s.judge(parts)
}

// growthKey is a row of a table.
type growthKey struct {
	by   By
	name string
}

// rowGrowth is what the findings of a row say together.
type rowGrowth struct {
	bytes  float64 // each step
	holder string  // of the first
}

// growthOf is the growth of the rows that findings are of.
func growthOf(parts []Part) map[growthKey]*rowGrowth {
	out := map[growthKey]*rowGrowth{}
	for i := range parts {
		if parts[i].Leaks == nil {
			continue
		}
		for k := range parts[i].Leaks.Findings {
			f := &parts[i].Leaks.Findings[k]
			name, _, _ := strings.Cut(f.Name(), " ")
			for _, key := range []growthKey{{ByLine, varpath.Key(name)}, {ByHolder, varpath.Key(f.Holder)}} {
				if out[key] == nil {
					out[key] = &rowGrowth{holder: f.Holder}
				}
				out[key].bytes += f.Bytes
			}
		}
	}
	delete(out, growthKey{ByHolder, ""})
	return out
}

// rowsOf adds up what is in use, and what was at the peak.
func rowsOf(now, peak []view.Row, by view.RowKind) []Row {
	peaks := map[string]int64{}
	for _, e := range view.GroupRows(peak, by) {
		r := rowOf(&e)
		peaks[r.Key()] = e.Bytes
	}
	var out []Row
	for _, e := range view.GroupRows(now, by) {
		r := rowOf(&e)
		at := peaks[r.Key()]
		r.Peak = &at
		out = append(out, r)
	}
	return out
}

func rowOf(e *view.Row) Row {
	return Row{Name: words.Line(e.Name), Function: words.Line(e.Func), File: e.File, Line: e.Line, Source: e.Source, Bytes: e.Bytes,
		Blocks: e.Blocks}
}

// held makes the tables by holder and by category, where holders were read.
func held(s *Screen, parts []Part) {
	holders, categories := map[string]*Row{}, map[string]*Row{}
	add := func(rows map[string]*Row, name string, h *view.HeldSite) *Row {
		key := varpath.Key(name)
		if rows[key] == nil { // sites come largest first: the name is that of the largest
			rows[key] = &Row{Name: words.Line(name)}
		}
		rows[key].Bytes += int64(h.Bytes)
		rows[key].Blocks += h.Blocks
		return rows[key]
	}
	read := false
	for i := range parts {
		if parts[i].Joined == nil {
			continue
		}
		read = true
		for k := range parts[i].Joined.Rows {
			h := &parts[i].Joined.Rows[k]
			add(holders, h.Name, h).Category = h.What
			add(categories, categoryOf(h), h)
		}
	}
	if read {
		s.Tables[ByHolder], s.Tables[ByCategory] = largestFirst(holders), largestFirst(categories)
	}
}

// noCategory is of blocks whose holder says nothing about what they are for.
const noCategory = "unknown"

func categoryOf(h *view.HeldSite) string {
	if h.What == "" {
		return noCategory
	}
	return h.What
}

func largestFirst(rows map[string]*Row) []Row {
	out := make([]Row, 0, len(rows))
	for _, r := range rows {
		out = append(out, *r)
	}
	sorts.Func(out, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// shorten makes one row of all that are too many, so that a table still adds up.
func shorten(rows []Row) []Row {
	if len(rows) <= maxRows {
		return rows
	}
	rest := Row{Name: "[other]", Rest: true}
	for _, r := range rows[maxRows-1:] {
		rest.Bytes += r.Bytes
		rest.Blocks += r.Blocks
	}
	return append(rows[:maxRows-1:maxRows-1], rest)
}

// stackRows limits the lines whose stacks are kept, stacksOfRow the stacks of each line.
const (
	stackRows   = 30
	stacksOfRow = 3
)

// stacksOf are the largest stacks of the largest lines. Entries come largest first within a process.
func stacksOf(entries []view.Row, rows []Row) []StackOfLine {
	var out []StackOfLine
	for i := range rows[:min(stackRows, len(rows))] {
		key := rows[i].Key()
		var all []StackOfLine
		for k := range entries {
			e := &entries[k]
			if r := rowOf(e); r.Key() != key || len(e.Stack) == 0 {
				continue
			}
			all = append(all, StackOfLine{Row: key, Bytes: e.Bytes, Blocks: e.Blocks, Frames: framesOf(e), Python: pythonOf(e)})
		}
		sorts.Func(all, func(a, b StackOfLine) int { return cmp.Compare(b.Bytes, a.Bytes) })
		out = append(out, all[:min(stacksOfRow, len(all))]...)
	}
	return out
}

func framesOf(e *view.Row) []string {
	out := make([]string, len(e.Stack))
	for i := range e.Stack {
		out[i] = words.Line(e.Stack[i].Text())
	}
	return out
}

// pythonOf is which frames are Python's.
func pythonOf(e *view.Row) []int {
	out := []int{}
	for i := range e.Stack {
		if e.Stack[i].File != "" {
			out = append(out, i)
		}
	}
	return out
}

// memoryOf adds up the memory of all processes. What is not known of one is not known of the sum.
func memoryOf(parts []Part) Memory {
	var m Memory
	var accounts, reported []*heap.Account
	for i := range parts {
		t := parts[i].Totals
		for k := range t.Accounts {
			a := &t.Accounts[k]
			accounts = append(accounts, a)
			if a.Device.Allocator().Totals() || a.Allocated != event.Unknown {
				reported = append(reported, a)
			}
		}
		for k := range t.Drivers {
			if d := &t.Drivers[k]; d.Layer == event.LayerDevice {
				m.Other += d.Live.Bytes - d.Segments.Bytes
			}
		}
	}
	allocated := sum(reported, func(a *heap.Account) uint64 { return a.Allocated })
	reserved := sum(reported, func(a *heap.Account) uint64 { return a.Reserved })
	m.Allocated = allocated
	if allocated != nil && reserved != nil && *reserved >= *allocated {
		cached := *reserved - *allocated
		m.Cached = &cached
	}
	if len(accounts) == 1 && accounts[0].Peak != event.Unknown {
		m.Peak = &accounts[0].Peak
	}
	m.driver(parts)
	return m
}

// sum is nil when a term is unknown, or there is none.
func sum(accounts []*heap.Account, of func(*heap.Account) uint64) *uint64 {
	var out uint64
	for _, a := range accounts {
		n := of(a)
		if n == event.Unknown {
			return nil
		}
		out += n
	}
	if len(accounts) == 0 {
		return nil
	}
	return &out
}

// driver adds what the driver counts.
func (m *Memory) driver(parts []Part) {
	devices, used, capacity := map[string]bool{}, uint64(0), uint64(0)
	known := len(parts) > 0
	for i := range parts {
		known = known && len(parts[i].Driver) > 0
		for _, d := range parts[i].Driver {
			if d.Used == figures.Unknown {
				known = false
			} else {
				used += uint64(d.Used)
			}
			if d.Total == figures.Unknown || d.UUID == "" || devices[d.UUID] {
				continue
			}
			devices[d.UUID] = true
			capacity += uint64(d.Total)
		}
	}
	if capacity > 0 {
		m.Capacity = &capacity
	}
	if !known {
		return
	}
	m.Used = &used
	if m.Allocated != nil && m.Cached != nil {
		rest := int64(used) - int64(*m.Allocated) - int64(*m.Cached) - int64(m.Other)
		m.Unexplained = &rest
	}
}

// judge takes the verdict, the steps and the phases of the process whose memory grows, or of the first one that has steps. Before there
// are any, the phases are those of the first process that has some.
func (s *Screen) judge(parts []Part) {
	var r *leaks.Report
	for i := range parts {
		if l := parts[i].Leaks; l != nil && (r == nil || l.Verdict == leaks.Growing && r.Verdict != leaks.Growing) {
			r, s.Phases = l, parts[i].Phases
		}
	}
	if r == nil {
		for i := 0; i < len(parts) && s.Phases == nil; i++ {
			s.Phases = parts[i].Phases
		}
		return
	}
	s.Verdict, s.Sentence = string(r.Verdict), verdict.OfGrowth(answer.OfReport(r)).String()
	s.StepCount, s.StepTime = r.Steps.Count, r.Steps.Period/1e6
}
