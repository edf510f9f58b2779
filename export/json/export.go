// SPDX-License-Identifier: Apache-2.0

// Package json writes figures as JSON for programs. Names and their order are part of the interface, which docs/schemas/README.md
// describes. Sizes and addresses are whole numbers of bytes; what is not known is left out, never 0.
package json

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/heap"
)

// exportVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const exportVersion = 2

// Export is what WriteExport writes.
type Export struct {
	View     *view.View
	Gputrace string // version that recorded; empty: not known
	PID      uint32 // 0: not known
	Command  []string
	PyTorch  string        // version; empty: not known
	Boot     time.Time     // when CLOCK_BOOTTIME was 0; the zero value: not known
	Moment   string        // what the view is of, in words
	Damage   error         // why the trace ends early; nil: it does not
	Leaks    *leaks.Report // whether memory grows; nil: that is not asked
	Sentence string        // what is concluded, for people; empty: nothing is
}

type exportFile struct {
	Format   string          `json:"format"`
	Version  int             `json:"version"`
	Gputrace string          `json:"gputrace,omitempty"`
	PID      uint32          `json:"pid,omitempty"`
	Command  []string        `json:"command,omitempty"`
	PyTorch  string          `json:"pytorch,omitempty"`
	Moment   string          `json:"moment"`
	Damage   string          `json:"damage,omitempty"`
	Leaks    *leaksBody      `json:"leaks,omitempty"`
	Summary  exportSummary   `json:"summary"`
	Accounts []exportAccount `json:"accounts"`
	Drivers  []exportDriver  `json:"drivers"`
	Lines    []exportLine    `json:"lines"`
	// Phases and Categories add up to Summary.Bytes, as Lines do. Categories is left out where they were not asked for.
	Phases     []exportPart `json:"phases"`
	Categories []exportPart `json:"categories,omitempty"`
	Sites      []exportSite `json:"sites"`
}

type exportSummary struct {
	Bytes         uint64         `json:"bytes"`
	Events        uint64         `json:"events"`
	Ignored       uint64         `json:"ignored"`
	Gaps          uint64         `json:"gaps"`
	LossIntervals []lossInterval `json:"loss_intervals,omitempty"` // the last 1000
	First         uint64         `json:"first_boottime_ns,omitempty"`
	Last          uint64         `json:"last_boottime_ns,omitempty"`
	FirstUTC      *time.Time     `json:"first,omitempty"`
	LastUTC       *time.Time     `json:"last,omitempty"`
}

type lossInterval struct {
	PID    uint32 `json:"pid"`
	From   uint64 `json:"from_boottime_ns"`
	To     uint64 `json:"to_boottime_ns"`
	Events uint64 `json:"events"`
}

type exportAccount struct {
	PID          uint32      `json:"pid,omitempty"`
	Device       string      `json:"device"`
	Allocator    string      `json:"allocator,omitempty"` // if it is not PyTorch's: "BFC"
	Sampled      bool        `json:"sampled,omitempty"`   // estimates: the size of a block is the bytes that it represents
	Allocated    *uint64     `json:"allocated,omitempty"`
	Reserved     *uint64     `json:"reserved,omitempty"`
	Live         exportCount `json:"live"`
	Before       *uint64     `json:"before,omitempty"`
	Lost         int64       `json:"lost"`
	Peak         uint64      `json:"peak"`
	PeakTime     *uint64     `json:"peak_boottime_ns,omitempty"`
	PeakReserved *uint64     `json:"peak_reserved,omitempty"`
	Allocs       uint64      `json:"allocs"`
	Frees        uint64      `json:"frees"`
	OOMs         uint64      `json:"ooms"`
}

type exportDriver struct {
	PID      uint32      `json:"pid,omitempty"`
	Layer    string      `json:"layer"`
	Device   string      `json:"device"`
	Live     exportCount `json:"live"`
	Segments exportCount `json:"segments"`
	Peak     uint64      `json:"peak"`
	Allocs   uint64      `json:"allocs"`
	Frees    uint64      `json:"frees"`
}

// exportCount is allocations. Unsized and the objects whose requested size is not known are left out when there are none.
type exportCount struct {
	Blocks           uint64  `json:"blocks"`
	Bytes            uint64  `json:"bytes"`
	Unsized          uint64  `json:"unsized,omitempty"`
	Requested        *uint64 `json:"requested,omitempty"`
	RequestedUnknown uint64  `json:"requested_unknown,omitempty"`
}

type exportLine struct {
	Name        string `json:"name"`
	File        string `json:"file,omitempty"`
	Line        int    `json:"line,omitempty"`
	Bytes       int64  `json:"bytes"`
	Blocks      uint64 `json:"blocks"`
	AllocBytes  int64  `json:"alloc_bytes"`
	AllocBlocks uint64 `json:"alloc_blocks"`
}

// exportPart is what is in use and was allocated of one phase or category.
type exportPart struct {
	Name        string `json:"name"`
	Bytes       int64  `json:"bytes"`
	Blocks      uint64 `json:"blocks"`
	AllocBytes  int64  `json:"alloc_bytes"`
	AllocBlocks uint64 `json:"alloc_blocks"`
}

func partsBy(v *view.View, by view.RowKind) []exportPart {
	out := []exportPart{}
	for _, s := range v.SumBy(by) {
		out = append(out, exportPart{s.Text, s.Bytes, s.Blocks, s.AllocBytes, s.AllocBlocks})
	}
	return out
}

type exportSite struct {
	Name    string        `json:"name"`
	Phase   string        `json:"phase"`
	PID     uint32        `json:"pid,omitempty"`
	Layer   string        `json:"layer"`
	Device  string        `json:"device"`
	Call    string        `json:"call,omitempty"`
	Segment bool          `json:"segment,omitempty"`
	Counted bool          `json:"counted"`
	Inuse   exportCount   `json:"inuse"`
	Alloc   exportCount   `json:"alloc"`
	Status  string        `json:"stack_status"`
	Stack   []exportFrame `json:"stack"`
}

type exportFrame struct {
	Kind     string `json:"kind"` // "python" or "native"
	Function string `json:"function,omitempty"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Module   string `json:"module,omitempty"`
	Offset   uint64 `json:"offset,omitempty"`
}

// WriteExport writes a view as one JSON object on one line.
func WriteExport(w io.Writer, x Export) error {
	lines := x.View.SumBy(view.ByLine)
	f := exportFile{
		Format: "gputrace export", Version: exportVersion, Gputrace: x.Gputrace, PID: x.PID, Command: x.Command, PyTorch: x.PyTorch,
		Moment: x.Moment, Summary: newExportSummary(&x), Accounts: []exportAccount{}, Drivers: []exportDriver{},
		Lines: make([]exportLine, len(lines)), Sites: []exportSite{}, Phases: partsBy(x.View, view.ByPhase),
	}
	f.Leaks = leaksBodyOf(x.Leaks, x.Sentence)
	if x.Damage != nil {
		f.Damage = x.Damage.Error()
	}
	s := x.View.Snapshot
	for i := range s.Accounts {
		f.Accounts = append(f.Accounts, newExportAccount(&s.Accounts[i]))
	}
	for i := range s.Drivers {
		d := &s.Drivers[i]
		f.Drivers = append(f.Drivers, exportDriver{
			PID: d.PID, Layer: d.Layer.String(), Device: d.Device.String(), Live: newExportCount(d.Live), Segments: newExportCount(d.Segments),
			Peak: d.Peak, Allocs: d.Allocs, Frees: d.Frees,
		})
	}
	for i := range lines {
		l := &lines[i]
		f.Lines[i] = exportLine{l.Text, l.File, l.Line, l.Bytes, l.Blocks, l.AllocBytes, l.AllocBlocks}
	}
	for i := range x.View.Sites {
		f.Sites = append(f.Sites, newExportSite(x.View, &x.View.Sites[i]))
	}
	if x.View.Detailed() {
		f.Categories = partsBy(x.View, view.ByCategory)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(&f); err != nil {
		return fmt.Errorf("write the figures as JSON: %w", err)
	}
	return nil
}

func newExportSummary(x *Export) exportSummary {
	s := x.View.Snapshot
	out := exportSummary{
		Bytes: x.View.Total(), Events: s.Events, Ignored: s.Ignored, Gaps: s.GapCount, First: s.First, Last: s.Time,
	}
	for _, h := range s.LossIntervals {
		out.LossIntervals = append(out.LossIntervals, lossInterval{h.PID, h.From, h.To, h.Events})
	}
	if !x.Boot.IsZero() && s.Events > 0 {
		first, last := x.Boot.Add(time.Duration(s.First)).UTC(), x.Boot.Add(time.Duration(s.Time)).UTC()
		out.FirstUTC, out.LastUTC = &first, &last
	}
	return out
}

func newExportAccount(a *heap.Account) exportAccount {
	out := exportAccount{
		PID: a.PID, Device: a.Device.String(), Allocated: known(a.Allocated), Reserved: known(a.Reserved), Live: newExportCount(a.Live),
		Before: known(a.Before), Lost: a.Lost, Peak: a.Peak, PeakReserved: known(a.PeakReserved), Allocs: a.Allocs, Frees: a.Frees,
		OOMs: a.OOMs,
	}
	if a.PeakTime != 0 {
		out.PeakTime = &a.PeakTime
	}
	if other := a.Device.Allocator(); other != allocator.Torch {
		out.Allocator, out.Sampled = other.String(), other.Sampled()
	}
	return out
}

func newExportCount(c heap.Count) exportCount {
	out := exportCount{Blocks: c.Objects, Bytes: c.Bytes, Unsized: c.Unsized, RequestedUnknown: c.Objects - c.RequestedObjects}
	if c.RequestedObjects == c.Objects {
		out.Requested = &c.Requested
	}
	return out
}

func newExportSite(v *view.View, s *view.Site) exportSite {
	out := exportSite{
		Name: s.Name, Phase: string(v.Phase(s)), PID: s.PID, Layer: s.Layer.String(), Device: s.Device.String(), Call: s.Call, Segment: s.Segment,
		Counted: s.Counted(), Inuse: newExportCount(s.Inuse), Alloc: newExportCount(s.Alloc), Status: s.Status(), Stack: []exportFrame{},
	}
	if s.Stack == nil {
		return out
	}
	for _, f := range stacks.VisibleFrames(s.Stack) {
		frame := exportFrame{Kind: "native", Function: f.Func, File: f.File, Line: max(0, f.Line), Offset: f.Offset}
		if f.Kind == event.FramePython {
			frame.Kind = "python"
		}
		if f.Module != nil {
			frame.Module = f.Module.Path
		}
		out.Stack = append(out.Stack, frame)
	}
	return out
}

// known is a number of bytes, or nil.
func known(n uint64) *uint64 {
	if n == event.Unknown {
		return nil
	}
	return &n
}
