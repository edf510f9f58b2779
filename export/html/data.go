// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html/template"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// dataVersion is that of the blocks: docs/decisions/page.md.
const dataVersion = 2

// longestName is how many characters of a name or a line are kept: they come from the program that was traced.
const longestName = 1000

// head is the first block: all that is needed for the first picture but the curves' points. Times are nanoseconds since
// pagemodel.Model.First, sizes bytes; -1: not known.
type head struct {
	Version int             `json:"version"`
	Program string          `json:"program"`
	Script  string          `json:"script"`
	Verdict *verdictData    `json:"verdict"` // null: there is none
	Steps   stepData        `json:"steps"`
	PID     uint32          `json:"pid"`
	Facts   list[[2]string] `json:"facts"`
	Notes   list[string]    `json:"notes"`
	Started string          `json:"started"` // RFC 3339; empty: not known
	Start   int64           `json:"start"`   // time of +0 s
	Last    int64           `json:"last"`
	Events  uint64          `json:"events"`
	Exact   bool            `json:"exact"`
	Parts   list[partData]  `json:"parts"`
	Moments momentData      `json:"moments"`
	OOMs    list[oom]       `json:"ooms"`
	Refused uint64          `json:"refused"`
	Losses  losses          `json:"losses"`
	Select  selection       `json:"select"`
	Exit    *exitData       `json:"exit"`   // null: the program did not free everything because it ended
	Points  list[int]       `json:"points"` // of each curve in the block "curves": all parts together, then each, where there are several
}

// exitData is what was in use before the program freed everything because it ended.
type exitData struct {
	Bytes  uint64 `json:"bytes"`
	Moment int    `json:"moment"` // -1: the page has none of exactly then
}

// partData is one process and device. The lists are by moment.
type partData struct {
	PID        uint32          `json:"pid"`
	Device     string          `json:"device"`
	Torch      bool            `json:"torch"`
	Peak       number          `json:"peak"`
	PeakTime   int64           `json:"peakTime"` // -1: before the first event
	PeakMoment int             `json:"peakMoment"`
	Capacity   number          `json:"capacity"` // of the device, bytes
	Used       number          `json:"used"`     // of it, by the process at the end, with its context
	Others     number          `json:"others"`   // likewise by other processes
	Before     numbers         `json:"before"`
	Known      numbers         `json:"known"`
	BeforeFor  list[beforeFor] `json:"beforeFor"` // of Before
	Lost       list[int64]     `json:"lost"`
	Allocated  numbers         `json:"allocated"`
	Reserved   numbers         `json:"reserved"`
	Driver     numbers         `json:"driver"`
}

// verdictData is what the page begins with.
type verdictData struct {
	Kind     string          `json:"kind"`
	Word     string          `json:"word"`
	Text     string          `json:"text"`
	Findings list[finding]   `json:"findings"`
	Facts    list[[2]string] `json:"facts"`
}

type finding struct {
	Title  string       `json:"title"`
	Search string       `json:"search"`
	Lines  list[string] `json:"lines"`
}

// stepData is the steps by the times at which they begin.
type stepData struct {
	On    string      `json:"on"`
	First int         `json:"first"` // number of the first one
	Begin list[int64] `json:"begin"` // steps of the time
}

// beforeFor is memory from before the first event by what holds it and what it is for.
type beforeFor struct {
	Holder string  `json:"holder"`
	For    string  `json:"for"`
	Bytes  numbers `json:"bytes"`
	Blocks numbers `json:"blocks"`
}

type momentData struct {
	Time   list[int64]  `json:"time"`
	Kind   list[int]    `json:"kind"` // pagemodel.MomentKind
	Events list[uint64] `json:"events"`
}

type oom struct {
	Time   int64  `json:"time"`
	Part   int    `json:"part"`
	Bytes  number `json:"bytes"`
	Moment int    `json:"moment"`
	Own    int32  `json:"own"`
	Thread uint32 `json:"thread"`
}

type losses struct {
	Events        number             `json:"events"`
	Gaps          uint64             `json:"gaps"`
	GapBytes      uint64             `json:"gapBytes"`
	LossIntervals list[lossInterval] `json:"lossIntervals"` // the last 1000
	Ignored       uint64             `json:"ignored"`
	Stacks        list[stackShare]   `json:"stacks"`
	Cut           int                `json:"cut"` // stacks that are shown as their own line alone
}

type lossInterval struct {
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Events uint64 `json:"events"`
}

type stackShare struct {
	Status string `json:"status"`
	Bytes  uint64 `json:"bytes"`
}

// selection is indices of moments; -1: not asked for.
type selection struct {
	At   int `json:"at"`
	From int `json:"from"`
	To   int `json:"to"`
}

// tree is the third block: names, stacks and groups, as columns.
type tree struct {
	Text      list[string] `json:"text"`
	Frames    frameData    `json:"frames"`
	Nodes     nodeData     `json:"nodes"`
	Groups    groupData    `json:"groups"`
	Phases    phaseData    `json:"phases"`
	Places    placeData    `json:"places"`
	Lifetimes int          `json:"lifetimes"` // in the block "lifetimes"
}

// frameData: Name, File and Source are indices in tree.Text.
type frameData struct {
	Kind   list[int] `json:"kind"`
	Name   list[int] `json:"name"`
	File   list[int] `json:"file"`
	Line   list[int] `json:"line"`
	Source list[int] `json:"source"`
}

type nodeData struct {
	Parent list[int32] `json:"parent"`
	Frame  list[int32] `json:"frame"`
}

type groupData struct {
	Part   list[int]    `json:"part"`
	Memory list[int]    `json:"memory"` // index in memories
	Node   list[int32]  `json:"node"`
	Own    list[int32]  `json:"own"`
	Thread list[uint32] `json:"thread"` // 0: not known
	Phase  list[int]    `json:"phase"`  // index in tree.Text
	For    list[int]    `json:"for"`    // the category: index in tree.Text
	Holder list[int]    `json:"holder"` // index in tree.Text
	Class  list[int]    `json:"class"`
	Flags  list[int]    `json:"flags"`
}

// phaseData is the spans of phases, by time.
type phaseData struct {
	Name   list[int]   `json:"name"` // index in tree.Text
	From   list[int64] `json:"from"` // steps of the time
	Length list[int64] `json:"length"`
}

// Flags of a group.
const (
	flagCounted = 1 // GPU memory that is counted in its own layer
	flagAgain   = 2 // its births do not count as allocations
)

// The kinds of memory that the page tells apart; the page has their names in this order.
const (
	memoryTorch = iota
	memoryOther
	memorySegments
	memoryHost
	memoryShared
	memoryVirtual
	memoryHolder
)

var memories = map[event.Layer]int{
	event.LayerAllocator: memoryTorch, event.LayerDevice: memoryOther, event.LayerHost: memoryHost, event.LayerShared: memoryShared,
	event.LayerVirtual: memoryVirtual, event.LayerHolder: memoryHolder,
}

// number is bytes; event.Unknown is -1.
type number uint64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) { return json.Marshal(signed(uint64(n))) }

func signed(n uint64) int64 {
	if n == event.Unknown {
		return -1
	}
	return int64(n)
}

// list is an array in JSON also when there is nothing in it.
type list[T any] []T

// MarshalJSON implements json.Marshaler.
func (l list[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}

type numbers []uint64

// MarshalJSON implements json.Marshaler.
func (n numbers) MarshalJSON() ([]byte, error) {
	out := make([]int64, len(n))
	for i, v := range n {
		out[i] = signed(v)
	}
	return json.Marshal(out)
}

// encode makes the blocks.
func encode(in *Input) ([]template.HTML, error) {
	b := in.Model
	curves := []pagemodel.Curve{b.All}
	if len(b.Parts) > 1 {
		for i := range b.Parts {
			curves = append(curves, b.Parts[i].Curve)
		}
	}
	h := headOf(in)
	for _, c := range curves {
		h.Points = append(h.Points, len(c))
	}
	t := treeOf(b)
	head, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	tree, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	var out []template.HTML
	for _, part := range []struct {
		id   string
		data []byte
	}{{"head", head}, {"curves", curveColumns(curves, b.First)}, {"tree", tree}, {"lifetimes", lifetimeColumns(b.Lifetimes)},
		{"places", placeColumns(&b.Places)}} {
		data, err := pack(part.data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.id, err)
		}
		out = append(out, element(`<script type="application/octet-stream" id="`+part.id+`">`, data, "</script>"))
	}
	return out, nil
}

// pack is gzip in base64.
func pack(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return base64.StdEncoding.AppendEncode(nil, b.Bytes()), nil
}

func headOf(in *Input) *head {
	b := in.Model
	since := func(time uint64) int64 { return int64(time - b.First) }
	h := &head{
		Version: dataVersion, Program: printable(in.Program), Script: printable(in.Script), PID: in.PID, Last: since(b.Last), Events: b.Events,
		Exact:   b.Exact,
		Refused: b.OOMCount, Select: selectionOf(in),
	}
	if !in.Started.IsZero() {
		h.Started = in.Started.UTC().Format("2006-01-02T15:04:05Z")
	}
	if in.Exit != 0 {
		h.Exit = &exitData{in.ExitBytes, momentAt(b, in.Exit)}
		if b.Moments[h.Exit.Moment].Time != in.Exit {
			h.Exit.Moment = -1
		}
	}
	if in.Start != 0 {
		h.Start = since(in.Start)
	}
	for _, f := range in.Facts {
		h.Facts = append(h.Facts, [2]string{printable(f.Name), printable(f.Value)})
	}
	for _, n := range in.Notes {
		h.Notes = append(h.Notes, printable(n))
	}
	h.Verdict, h.Steps = verdictOf(in.Verdict), stepsOf(in, since)
	for i := range b.Parts {
		h.Parts = append(h.Parts, partOf(in, &b.Parts[i], since))
	}
	for _, m := range b.Moments {
		h.Moments.Time = append(h.Moments.Time, since(max(m.Time, b.First)))
		h.Moments.Kind = append(h.Moments.Kind, int(m.Kind))
		h.Moments.Events = append(h.Moments.Events, m.Event)
	}
	for _, r := range b.OOMs {
		h.OOMs = append(h.OOMs, oom{since(r.Time), r.Part, number(r.Bytes), r.Moment, r.Own, r.TID})
	}
	h.Losses = lossesOf(in, since)
	return h
}

// maxSteps is how many steps a page has at most: more could not be seen as such.
const maxSteps = 20000

// stepsOf leaves steps out where they are too many.
func stepsOf(in *Input, since func(uint64) int64) stepData {
	out := stepData{On: printable(in.Steps.On), First: in.Steps.First}
	if len(in.Steps.Begin) > maxSteps {
		return out
	}
	at := int64(0)
	for _, time := range in.Steps.Begin {
		begin := max(0, since(time))
		out.Begin = append(out.Begin, begin-at)
		at = begin
	}
	return out
}

func verdictOf(v *Verdict) *verdictData {
	if v == nil {
		return nil
	}
	out := &verdictData{Kind: string(v.Kind), Word: printable(v.Word), Text: printable(v.Text)}
	for _, f := range v.Facts {
		out.Facts = append(out.Facts, [2]string{printable(f.Name), printable(f.Value)})
	}
	for i := range v.Findings {
		f := &v.Findings[i]
		to := finding{Title: printable(f.Title), Search: printable(f.Search)}
		for _, l := range f.Lines {
			to.Lines = append(to.Lines, printable(l))
		}
		out.Findings = append(out.Findings, to)
	}
	return out
}

// selectionOf is what is chosen when the page opens; of the peak, nothing: that is the page's own choice.
func selectionOf(in *Input) selection {
	s, out := &in.Selection, selection{-1, -1, -1}
	switch {
	case s.To != 0:
		out.From, out.To = momentAt(in.Model, s.From), momentAt(in.Model, s.To)
	case s.Moment.Kind == moment.End:
		out.At = len(in.Model.Moments) - 1
	case s.Moment.IsTime():
		out.At = momentAt(in.Model, s.Moment.Time)
	}
	return out
}

// momentAt is the index of the last moment that is not later than a time; before the first event it is 0.
func momentAt(b *pagemodel.Model, time uint64) int {
	at := 0
	for i := range b.Moments {
		if b.Moments[i].Event > 0 && b.Moments[i].Time <= time {
			at = i
		}
	}
	return at
}

func partOf(in *Input, p *pagemodel.Part, since func(uint64) int64) partData {
	out := partData{
		PID: p.PID, Device: p.Device.String(), Torch: p.Torch, Peak: number(p.Peak), PeakTime: -1, PeakMoment: p.PeakMoment,
		Before: p.Before, Known: p.Known, Lost: p.Lost, Allocated: p.Allocated, Reserved: p.Reserved, Driver: p.Driver,
		Capacity: number(event.Unknown), Used: number(event.Unknown), Others: number(event.Unknown),
	}
	if c, ok := in.Capacity[p.Device]; ok {
		out.Capacity, out.Used, out.Others = number(c.Total), number(c.Used), number(c.Others)
	}
	for _, b := range p.BeforeFor {
		out.BeforeFor = append(out.BeforeFor, beforeFor{printable(b.Holder), string(b.Category), b.Bytes, b.Blocks})
	}
	if p.PeakTime != 0 {
		out.PeakTime = since(p.PeakTime)
		if out.PeakTime == -1 { // a nanosecond before, and known
			out.PeakTime--
		}
	}
	return out
}

func lossesOf(in *Input, since func(uint64) int64) losses {
	s := in.View.Snapshot
	out := losses{Events: number(in.Lost), Gaps: s.GapCount, Ignored: s.Ignored, Cut: in.Model.CutStacks}
	for i := range s.Accounts {
		out.GapBytes += s.Accounts[i].GapBytes
	}
	for _, l := range s.LossIntervals {
		out.LossIntervals = append(out.LossIntervals, lossInterval{since(l.From), since(l.To), l.Events})
	}
	for _, u := range in.View.Stacks() {
		out.Stacks = append(out.Stacks, stackShare{u.Status, u.Bytes})
	}
	return out
}

// texts numbers strings. Number 0 is the empty one.
type texts struct {
	list []string
	at   map[string]int
}

func (t *texts) of(s string) int {
	s = printable(s)
	i, ok := t.at[s]
	if !ok {
		i = len(t.list)
		t.at[s] = i
		t.list = append(t.list, s)
	}
	return i
}

func treeOf(b *pagemodel.Model) *tree {
	names := &texts{list: []string{""}, at: map[string]int{"": 0}}
	t := &tree{Lifetimes: len(b.Lifetimes)}
	for i := range b.Frames {
		f, to := &b.Frames[i], &t.Frames
		to.Kind, to.Line = append(to.Kind, int(f.Kind)), append(to.Line, f.Line)
		to.Name, to.File, to.Source = append(to.Name, names.of(f.Name)), append(to.File, names.of(f.File)), append(to.Source, names.of(f.Source))
	}
	for _, n := range b.Nodes {
		t.Nodes.Parent, t.Nodes.Frame = append(t.Nodes.Parent, n.Parent), append(t.Nodes.Frame, n.Frame)
	}
	for i := range b.Groups {
		g, to := &b.Groups[i], &t.Groups
		to.Part, to.Memory = append(to.Part, g.Part), append(to.Memory, memoryOf(g))
		to.Node, to.Own, to.Thread = append(to.Node, g.Node), append(to.Own, g.Own), append(to.Thread, g.TID)
		to.Phase = append(to.Phase, names.of(string(g.Phase)))
		to.For = append(to.For, names.of(string(g.Category)))
		to.Holder = append(to.Holder, names.of(g.Holder))
		to.Class, to.Flags = append(to.Class, int(g.Class)), append(to.Flags, flagsOf(g))
	}
	t.Phases, t.Places = phasesOf(b, names), placesOf(&b.Places, names)
	t.Text = names.list
	return t
}

func phasesOf(b *pagemodel.Model, names *texts) phaseData {
	var out phaseData
	at := b.First
	for _, s := range b.Phases {
		from := max(s.From, b.First)
		out.Name, out.From = append(out.Name, names.of(string(s.Phase))), append(out.From, int64(from-at))
		out.Length = append(out.Length, int64(max(s.To, from)-from))
		at = from
	}
	return out
}

func memoryOf(g *pagemodel.Group) int {
	if g.Segment && g.Layer == event.LayerDevice {
		return memorySegments
	}
	return memories[g.Layer]
}

func flagsOf(g *pagemodel.Group) int {
	flags := 0
	if g.Counted() {
		flags |= flagCounted
	}
	if g.Again || g.Origin != heap.OriginEvent {
		flags |= flagAgain
	}
	return flags
}

// curveColumns is the points of curves, as columns of varints: of each curve the distances of the times, then of each quantity
// the steps of Last, Last above Low, High above Last. Values are one more than they are, so that 0 is what is not known.
func curveColumns(curves []pagemodel.Curve, first uint64) []byte {
	var out []byte
	for _, c := range curves {
		time := first
		for i := range c {
			out = binary.AppendUvarint(out, max(c[i].Time, time)-time)
			time = max(c[i].Time, time)
		}
		for q := range pagemodel.Quantities {
			last := uint64(0)
			for i := range c {
				out = binary.AppendVarint(out, int64(c[i].Last[q]+1-last))
				last = c[i].Last[q] + 1
			}
			for i := range c {
				out = binary.AppendVarint(out, int64(c[i].Last[q]-c[i].Low[q]))
			}
			for i := range c {
				out = binary.AppendVarint(out, int64(c[i].High[q]-c[i].Last[q]))
			}
		}
	}
	return out
}

// lifetimeColumns is the lifetimes, as columns of varints: steps of the group, steps of the allocation (from 0 in each group), moments
// in use, blocks, and bytes.
func lifetimeColumns(lifetimes []pagemodel.Lifetimes) []byte {
	var out []byte
	group := uint32(0)
	for i := range lifetimes {
		out = binary.AppendUvarint(out, uint64(lifetimes[i].Group-group))
		group = lifetimes[i].Group
	}
	allocated := uint16(0)
	for i := range lifetimes {
		if i == 0 || lifetimes[i].Group != lifetimes[i-1].Group {
			allocated = 0
		}
		out = binary.AppendUvarint(out, uint64(lifetimes[i].Alloc-allocated))
		allocated = lifetimes[i].Alloc
	}
	for _, column := range []func(l *pagemodel.Lifetimes) uint64{
		func(l *pagemodel.Lifetimes) uint64 { return uint64(l.Free - l.Alloc) },
		func(l *pagemodel.Lifetimes) uint64 { return l.Blocks },
		func(l *pagemodel.Lifetimes) uint64 { return l.Bytes },
	} {
		for i := range lifetimes {
			out = binary.AppendUvarint(out, column(&lifetimes[i]))
		}
	}
	return out
}

// printable makes one line of a name from the traced program, cut.
func printable(s string) string { return words.Cut(words.Line(s), longestName) }
