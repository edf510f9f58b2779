// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// oomVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const oomVersion = 1

// OOMInput is what WriteOOM writes.
type OOMInput struct {
	Report *oom.Report
	Text   func(*oom.Case) string // the decision in a sentence
	// Wall is a time of the events as one of day; zero where that is not known.
	Wall func(boottime uint64) time.Time
}

type oomFile struct {
	Format    string    `json:"format"`
	Version   int       `json:"version"`
	Main      *int      `json:"main"` // index in OOMs of the failure that the first screen begins with; null: none
	OOMs      []oomCase `json:"ooms"`
	More      int       `json:"more"`
	Recovered int       `json:"recovered"`
}

// oomCase has null where something is not known.
type oomCase struct {
	Number       int           `json:"number"`
	Time         *time.Time    `json:"time"`
	Boottime     uint64        `json:"boottime_ns"`
	PID          uint32        `json:"pid"`
	TID          uint32        `json:"tid"`
	Step         *int          `json:"step"`
	Phase        *string       `json:"phase"`
	Device       string        `json:"device"`
	Site         string        `json:"site"`
	Stack        []diffCall    `json:"stack"`
	Call         *string       `json:"call"`
	Requested    figures.Bytes `json:"requested_bytes"`
	Asked        figures.Bytes `json:"driver_asked_bytes"`
	Tries        int           `json:"driver_refusals"`
	Flushed      uint64        `json:"flushed_bytes"`
	Decision     oom.Decision  `json:"decision"`
	Text         string        `json:"decision_text"`
	Causes       []oomCause    `json:"causes"`
	Need         figures.Bytes `json:"missing_bytes"`
	Follows      figures.Bytes `json:"follows_bytes"`
	Replay       *oomReplay    `json:"expandable_segments"`
	ExitStatus   *int          `json:"exit_status"`
	Caught       *bool         `json:"caught"`
	Allocated    figures.Bytes `json:"allocated"`
	Reserved     figures.Bytes `json:"reserved"`
	TorchAsked   figures.Bytes `json:"requested"`
	Inactive     figures.Bytes `json:"inactive_split"`
	FreeSegments figures.Bytes `json:"free_segments"`
	Limit        figures.Bytes `json:"limit"`
	LimitBelow   figures.Bytes `json:"limit_below"`
	Outside      figures.Bytes `json:"outside_pytorch"`
	Owners       []oomOwner    `json:"owners"`
	Context      figures.Bytes `json:"context"`
	DeviceTotal  figures.Bytes `json:"device_total"`
	DeviceFree   figures.Bytes `json:"device_free"`
	Others       figures.Bytes `json:"other_processes"`
	OthersBy     []oomProcess  `json:"other_processes_by"`
	Rest         figures.Bytes `json:"no_process"`
	LargestFree  figures.Bytes `json:"largest_free"`
	FreePieces   figures.Bytes `json:"free_pieces"`
	Pools        []oomPool     `json:"pools"`
	Pins         []oomPin      `json:"pinned_segments"`
	Healthy      figures.Bytes `json:"earlier_peak"`
	Steps        []oomStep     `json:"earlier_steps"`
	Before60     figures.Bytes `json:"allocated_60_s_before"`
	HoldersAt    *uint64       `json:"holders_boottime_ns"`
	Categories   []oomSum      `json:"categories"`
	Top          []oomHolding  `json:"top"`
}

// oomCause is a cause with what would have been without it; null where it is not known.
type oomCause struct {
	Decision oom.Decision  `json:"cause"`
	Bytes    figures.Bytes `json:"bytes"`
	Usual    figures.Bytes `json:"usual_bytes"`
	Alone    *bool         `json:"suffices_alone"`
}

type oomReplay struct {
	Recorded bool    `json:"recorded"`
	Outcome  string  `json:"outcome"`
	Site     *string `json:"site"`
	Exact    bool    `json:"exact"`
}

type oomOwner struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

type oomProcess struct {
	PID   uint32        `json:"pid"`
	Bytes figures.Bytes `json:"bytes"`
}

type oomPool struct {
	Small    bool          `json:"small"`
	Private  bool          `json:"private"`
	Owner    oom.PoolOwner `json:"owner"`
	Stream   figures.Bytes `json:"stream"`
	Request  bool          `json:"of_request"`
	Reserved uint64        `json:"reserved"`
	Free     uint64        `json:"free"`
	Largest  uint64        `json:"largest_free"`
}

type oomPin struct {
	Address uint64       `json:"address"`
	Size    uint64       `json:"size"`
	Free    uint64       `json:"free"`
	Largest uint64       `json:"largest_free"`
	By      []oomHolding `json:"by"`
}

type oomStep struct {
	Step int    `json:"step"`
	Peak uint64 `json:"peak"`
}

type oomSum struct {
	Category phases.Category `json:"category"`
	Bytes    uint64          `json:"bytes"`
	Blocks   uint64          `json:"blocks"`
}

type oomHolding struct {
	Site     string           `json:"site"`
	Holder   *string          `json:"holder"`
	Category *phases.Category `json:"category"`
	Bytes    uint64           `json:"bytes"`
	Blocks   uint64           `json:"blocks"`
}

// WriteOOM writes why requests failed.
func WriteOOM(w io.Writer, in *OOMInput) error {
	f := oomFile{Format: "gputrace oom", Version: oomVersion, OOMs: []oomCase{}, More: in.Report.More, Recovered: in.Report.Recovered}
	main := in.Report.Main()
	for i := range in.Report.Cases {
		if &in.Report.Cases[i] == main {
			f.Main = &i
		}
		f.OOMs = append(f.OOMs, oomCaseOf(&in.Report.Cases[i], in))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("write why memory ran out: %w", err)
	}
	return nil
}

func oomCaseOf(c *oom.Case, in *OOMInput) oomCase {
	t := &c.Torch
	out := oomCase{
		Number: c.Number, Boottime: c.Time, PID: c.PID, TID: c.TID, Device: c.Device.String(), Site: c.Site, Stack: oomStack(c.Stack),
		Call:      textOrNull(c.Call),
		Requested: figures.Bytes(c.Requested), Asked: figures.Bytes(c.Asked), Tries: c.Tries, Flushed: c.Flushed, Decision: c.Decision,
		Text: in.Text(c), Allocated: figures.Bytes(t.Allocated), Reserved: figures.Bytes(t.Reserved), TorchAsked: figures.Bytes(t.Requested),
		Inactive: figures.Bytes(t.InactiveSplit), FreeSegments: figures.Bytes(t.Free), Limit: figures.Bytes(c.Limit), LimitBelow: figures.Unknown,
		Outside: figures.Bytes(c.Other.Bytes), Owners: []oomOwner{}, Context: figures.Bytes(c.Context), DeviceTotal: figures.Bytes(c.Total),
		DeviceFree: figures.Bytes(c.Free), Others: figures.Bytes(c.Others), Rest: figures.Bytes(c.Rest), OthersBy: []oomProcess{},
		LargestFree: figures.Bytes(c.Largest),
		FreePieces:  figures.Bytes(c.Pieces), Pools: []oomPool{}, Pins: []oomPin{}, Healthy: figures.Bytes(c.Healthy), Steps: []oomStep{},
		Before60: figures.Bytes(c.Before60), Categories: []oomSum{}, Top: oomHoldings(c.Top),
		Causes: []oomCause{}, Need: figures.Bytes(c.Need), Follows: figures.Bytes(c.Follows), ExitStatus: c.Exit,
	}
	if c.Phase != phases.Unknown {
		out.Phase = textOrNull(string(c.Phase))
	}
	if c.Step > 0 {
		out.Step = &c.Step
	}
	if at := in.Wall(c.Time); !at.IsZero() {
		at = at.UTC()
		out.Time = &at
	}
	out.Caught = oomAnswer(c.Caught)
	if c.HeldAt != 0 {
		out.HoldersAt = &c.HeldAt
	}
	if c.LimitBelow != 0 {
		out.LimitBelow = figures.Bytes(c.LimitBelow)
	}
	if len(c.Pools) == 0 && t.Reserved != 0 {
		out.LargestFree, out.FreePieces = figures.Unknown, figures.Unknown
	}
	out.addLists(c)
	return out
}

// oomAnswer is nil for what is not known.
func oomAnswer(a oom.Answer) *bool {
	if a == oom.Unknown {
		return nil
	}
	yes := a == oom.Yes
	return &yes
}

func (out *oomCase) addLists(c *oom.Case) {
	for i := range c.Causes {
		x := &c.Causes[i]
		out.Causes = append(out.Causes, oomCause{x.Decision, figures.Bytes(x.Bytes), figures.Bytes(x.Usual), oomAnswer(x.Alone)})
	}
	if r := c.Replay; r != nil {
		out.Replay = &oomReplay{r.Recorded, string(r.Outcome), textOrNull(r.Site), r.Exact}
	}
	for i := range c.Owners {
		out.Owners = append(out.Owners, oomOwner{c.Owners[i].Name, c.Owners[i].Bytes})
	}
	for _, o := range c.By {
		out.OthersBy = append(out.OthersBy, oomProcess{o.PID, o.Used})
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		out.Pools = append(out.Pools, oomPool{p.Small, p.Private, p.Owner, figures.Bytes(p.Stream), p.Request, p.Reserved, p.Free, p.Largest})
	}
	for i := range c.Pins {
		p := &c.Pins[i]
		out.Pins = append(out.Pins, oomPin{p.Addr, p.Size, p.Free, p.Largest, oomHoldings(p.By)})
	}
	for _, s := range c.Steps {
		out.Steps = append(out.Steps, oomStep{s.Step, s.Peak})
	}
	for i := range c.Categories {
		s := &c.Categories[i]
		out.Categories = append(out.Categories, oomSum{s.Name, s.Bytes, s.Objects})
	}
}

func oomStack(st *event.Stack) []diffCall {
	out := []diffCall{}
	if st == nil {
		return out
	}
	frames := stacks.VisibleFrames(st)
	for i := range frames {
		out = append(out, leakCall(&frames[i]))
	}
	return out
}

// maxTop is how many rows of live blocks are written.
const maxTop = 100

func oomHoldings(rows []oom.Holding) []oomHolding {
	out := []oomHolding{}
	for i := range rows[:min(maxTop, len(rows))] {
		r := &rows[i]
		h := oomHolding{Site: r.Site, Bytes: r.Bytes, Blocks: r.Objects}
		if r.Holder != view.NoHolder {
			h.Holder = &r.Holder
		}
		if r.Category != phases.NoCategory && r.Category != "" {
			h.Category = &r.Category
		}
		out = append(out, h)
	}
	return out
}
