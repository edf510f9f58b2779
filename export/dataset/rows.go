// SPDX-License-Identifier: Apache-2.0

package dataset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// Process is a process of which there are rows.
type Process struct {
	Labels  map[string]string // as the agent labels processes; nil: none
	Job     string            // used if the labels name no job; empty: not known
	Rank    int               // -1: not known
	World   int               // 0: not known
	PID     int
	Program string
	Started time.Time
	Version string // of gputrace
}

// Key identifies the process in all rows.
func (p *Process) Key() string {
	return fmt.Sprintf("%s-%d", p.Started.UTC().Format("20060102T150405.000000Z"), p.PID)
}

// job returns the name of the process's job; empty: not known.
func (p *Process) job() string {
	l := p.Labels
	return cmp.Or(l["job"], l["job_id"], p.Job, l["unit"], l["pod"], l["pod_uid"])
}

// Moment is a process at one moment.
type Moment struct {
	Process *Process
	Kind    string // End, Peak or Now
	Time    time.Time
	// Wall converts CLOCK_BOOTTIME nanoseconds. nil: peaks have Time too.
	Wall    func(boot uint64) time.Time
	View    *view.View
	Driver  []figures.DriverUse // nil: not known, as of a peak
	Lost    *int64
	Leaks   *leaks.Report // nil: not judged
	Verdict string        // empty: not judged
	Text    string        // the sentence of Verdict
	Grew    time.Time     // zero: not known
	// Top limits the lines of each device and layer; 0: all. Names reports whether a line may keep its name; nil: each may. The other
	// lines are one row, OtherLines.
	Top   int
	Names func(line string) bool
}

// OtherLines is the name of the lines without a row of their own.
const OtherLines = "(other lines)"

// Rows returns the rows of a moment: of moments one for each device, and its lines.
func (m *Moment) Rows() (moments []MomentRow, lines []LineRow) {
	s := m.View.Snapshot
	index := map[event.Device]int{}
	at := func(d event.Device) *MomentRow {
		i, ok := index[d]
		if !ok {
			i = len(moments)
			index[d] = i
			moments = append(moments, m.row(d))
		}
		return &moments[i]
	}
	for i := range s.Accounts {
		m.addAccount(at(s.Accounts[i].Device), &s.Accounts[i])
	}
	for _, d := range m.View.Devices() {
		at(d.Device).Other += int64(d.Other.Bytes)
	}
	byName := map[string]*MomentRow{}
	for i := range moments {
		byName[moments[i].Device] = &moments[i]
	}
	return moments, m.lines(byName)
}

// row returns a row with what all devices of a process have in common.
func (m *Moment) row(d event.Device) MomentRow {
	p := m.Process
	r := MomentRow{
		Time: m.Time.UnixMicro(), Moment: m.Kind, Process: p.Key(), Started: micros(p.Started), Node: text(p.Labels["node"]),
		Namespace: text(p.Labels["namespace"]), Pod: text(cmp.Or(p.Labels["pod"], p.Labels["pod_uid"])),
		Container: text(cmp.Or(p.Labels["container"], p.Labels["container_id"])), PID: int64(p.PID), Program: clean(p.Program),
		Device: d.String(), Lost: m.Lost, Verdict: text(m.Verdict), Sentence: text(m.Text), GputraceVer: p.Version, GrewAt: micros(m.Grew),
	}
	if p.World > 0 {
		r.WorldSize = number(p.World)
	}
	for i := range m.Driver {
		if u := &m.Driver[i]; u.Device >= 0 && u.Device == int(d.Index) {
			r.Used, r.Total = size(uint64(u.Used)), size(uint64(u.Total))
		}
	}
	if l := m.Leaks; l != nil {
		growth := answer.BytesPerStep(l)
		r.Steps, r.Growth = number(l.Steps.Count), &growth
		if len(l.Findings) > 0 {
			r.GrewLine, r.GrewHolder = text(m.name(l.Findings[0].Name())), text(l.Findings[0].Holder)
		}
	}
	return r
}

func (m *Moment) addAccount(r *MomentRow, a *heap.Account) {
	live := a.Allocated
	if live == event.Unknown {
		live = a.Live.Bytes
	}
	r.Live, r.Reserved, r.Before = plus(r.Live, live), plus(r.Reserved, a.Reserved), plus(r.Before, a.Before)
	r.Allocs, r.Frees, r.OOMs = r.Allocs+int64(a.Allocs), r.Frees+int64(a.Frees), r.OOMs+int64(a.OOMs)
	if m.Kind == Peak && m.Wall != nil && a.PeakTime != 0 {
		r.Time = m.Wall(a.PeakTime).UnixMicro()
	}
}

// name returns the name of a line, or OtherLines if it may have none.
func (m *Moment) name(line string) string {
	if m.Names != nil && !m.Names(line) {
		return OtherLines
	}
	return line
}

// place identifies a line.
type place struct{ device, layer, line, file, phase, category string }

// lines returns the rows of the lines, the largest first in each device and layer.
func (m *Moment) lines(of map[string]*MomentRow) []LineRow {
	sum := map[place]*LineRow{}
	add := func(key place, number int, bytes int64, blocks uint64) {
		r := sum[key]
		if r == nil {
			at := of[key.device]
			r = &LineRow{
				Time: at.Time, Moment: m.Kind, Process: at.Process, Node: at.Node, Namespace: at.Namespace, Pod: at.Pod, Device: key.device,
				Layer: key.layer, Line: clean(key.line), File: text(key.file), Phase: key.phase, Category: text(key.category),
			}
			if number > 0 {
				r.LineNumber = ptr(int64(number))
			}
			sum[key] = r
		}
		r.Bytes += bytes
		if blocks > 0 {
			r.Blocks = ptr(int64(blocks) + value(r.Blocks))
		}
	}
	rows := m.View.Rows()
	slices.SortFunc(rows, func(x, y view.Row) int { return cmp.Compare(y.Bytes, x.Bytes) })
	for i := range rows {
		e := &rows[i]
		line := strings.TrimSpace(e.Name + " " + e.Func)
		if m.name(line) != line {
			add(place{e.Device, e.Layer, OtherLines, "", e.Phase, e.Category}, 0, e.Bytes, e.Blocks)
			continue
		}
		add(place{e.Device, e.Layer, line, e.File, e.Phase, e.Category}, e.Line, e.Bytes, e.Blocks)
	}
	out := make([]LineRow, 0, len(sum))
	for _, r := range sum {
		out = append(out, *r)
	}
	slices.SortFunc(out, compareLines)
	return m.top(out)
}

func compareLines(x, y LineRow) int {
	return cmp.Or(
		cmp.Compare(x.Device, y.Device), cmp.Compare(x.Layer, y.Layer), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Line, y.Line),
		cmp.Compare(value(x.File), value(y.File)), cmp.Compare(x.Phase, y.Phase), cmp.Compare(value(x.Category), value(y.Category)),
	)
}

// top leaves the first Top rows of each device and layer, and adds up the others.
func (m *Moment) top(rows []LineRow) []LineRow {
	if m.Top == 0 {
		return rows
	}
	var out []LineRow
	n := 0
	for i := range rows {
		r := rows[i]
		if i > 0 && (r.Device != rows[i-1].Device || r.Layer != rows[i-1].Layer) {
			n = 0
		}
		switch n++; {
		case n <= m.Top:
			out = append(out, r)
		case n == m.Top+1:
			r.Line, r.File, r.LineNumber, r.Phase, r.Category = OtherLines, nil, nil, noPhase, nil
			out = append(out, r)
		default:
			rest := &out[len(out)-1]
			rest.Bytes += r.Bytes
			if r.Blocks != nil {
				rest.Blocks = ptr(*r.Blocks + value(rest.Blocks))
			}
		}
	}
	return out
}

// noPhase is the phase of lines that have several.
const noPhase = "unknown"

func ptr[T any](v T) *T { return &v }

// value returns what a pointer points to; nil: the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func number(n int) *int64 { return ptr(int64(n)) }

// size returns a size; nil: not known.
func size(n uint64) *int64 {
	if n == event.Unknown {
		return nil
	}
	return ptr(int64(n))
}

// plus adds a size to a sum; what is not known changes nothing.
func plus(sum *int64, n uint64) *int64 {
	if n == event.Unknown {
		return sum
	}
	return ptr(value(sum) + int64(n))
}

// micros returns a time in microseconds; nil: not known.
func micros(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	return ptr(t.UnixMicro())
}

// maxText is the maximum length of a text, characters.
const maxText = 1000

// clean makes a text that a program chose printable, in one line of bounded length.
func clean(s string) string { return words.Cut(words.Line(words.Valid(s)), maxText) }

// text is clean for an optional column; nil: s is empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return ptr(clean(s))
}
