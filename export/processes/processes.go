// SPDX-License-Identifier: Apache-2.0

// Package processes is what a person sees of gputrace without arguments: the processes that use a GPU, and what to type next.
package processes

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/machine"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// Input is what Write shows.
type Input struct {
	Report *machine.Report
	Width  int      // of the screen, characters; 0: 80
	Sudo   bool     // a trace takes rights that the user does not have
	Advice []string // what is in the way of a trace here, a line each
}

// leastCommand is how much of a command line must fit for a process to take one line.
const leastCommand = 24

// Write lists the processes that use a GPU, each with the line that records it, what could not be seen, and what to do next.
func Write(w io.Writer, in *Input) error {
	width := in.Width
	if width == 0 {
		width = 80
	}
	m := page{in: in, r: in.Report, width: width}
	m.title()
	switch {
	case len(m.r.Processes) == 0:
	case !m.wide():
		m.narrow()
	}
	m.notes()
	m.next()
	_, err := io.WriteString(w, m.out.String())
	return err
}

// page makes the text.
type page struct {
	in    *Input
	r     *machine.Report
	width int
	out   strings.Builder
}

// line adds one line, cut to the width.
func (m *page) line(format string, args ...any) {
	m.out.WriteString(strings.TrimRight(words.Cut(words.Line(fmt.Sprintf(format, args...)), m.width), " ") + "\n")
}

// wrapped adds a text in lines that fit, all but the first further in.
func (m *page) wrapped(text string) {
	for _, line := range words.Lines("  "+words.Line(text), m.width, 4) {
		m.out.WriteString(line + "\n")
	}
}

func (m *page) title() {
	n := len(m.r.Processes)
	switch n {
	case 0:
		m.line("no process that we can see uses a GPU: %s looked at", processCount(m.r.Searched))
	case 1:
		m.line("1 process uses a GPU")
	default:
		m.line("%d processes use a GPU", n)
	}
	for _, g := range m.r.GPUs {
		m.line("  GPU %d  %s  %s of %s in use", g.Index, g.Name, table.Bytes(g.Used), table.Bytes(g.Total))
	}
	m.out.WriteString("\n")
}

// column is a column of figures.
type column struct {
	name  string
	right bool
	text  func(p *machine.Process) string
	empty string // of a column in which every row has this: it is left out
}

var figures = []column{
	{name: "USER", text: func(p *machine.Process) string { return p.User }},
	{name: "DEVICE", text: deviceText},
	{name: "DRIVER", right: true, text: func(p *machine.Process) string { return table.Bytes(p.DriverBytes()) },
		empty: table.Bytes(event.Unknown)},
	{name: "ALLOCATED", right: true, text: func(p *machine.Process) string { return table.Bytes(p.Allocated()) },
		empty: table.Bytes(event.Unknown)},
	{name: "RESERVED", right: true, text: func(p *machine.Process) string { return table.Bytes(p.Reserved()) },
		empty: table.Bytes(event.Unknown)},
}

// more are the columns of a wide screen.
var more = []column{
	{name: "FRAMEWORK", text: func(p *machine.Process) string { return strings.Join(p.Frameworks, ", ") }},
	{name: "CONTAINER", text: func(p *machine.Process) string { return p.Container }},
	{name: "COMMAND", text: command},
}

// deviceText names the devices of a process: "cuda:0", "cuda:0,1", "8 GPUs".
func deviceText(p *machine.Process) string {
	const shown = 3
	if len(p.Devices) > shown {
		return fmt.Sprintf("%d GPUs", len(p.Devices))
	}
	var numbers []string
	for _, d := range p.Devices {
		if d.Device < 0 {
			return "cuda:?"
		}
		numbers = append(numbers, strconv.Itoa(d.Device))
	}
	if numbers == nil {
		return "-"
	}
	return "cuda:" + strings.Join(numbers, ",")
}

func command(p *machine.Process) string { return words.ScriptLine(p.Command, p.Name) }

// record is the line that records a process.
func (m *page) record(p *machine.Process) string {
	return fmt.Sprintf("%sgputrace -p %d", m.sudo(), p.PID)
}

func (m *page) sudo() string {
	if m.in.Sudo {
		return "sudo "
	}
	return ""
}

// cells are the columns of all rows, the header in front, with what no row has left out.
func (m *page) cells(columns []column) [][]string {
	rows := make([][]string, len(m.r.Processes)+1)
	for _, c := range columns {
		texts := []string{c.name}
		used := false
		for i := range m.r.Processes {
			text := c.text(&m.r.Processes[i])
			used = used || text != c.empty
			texts = append(texts, text)
		}
		if !used {
			continue
		}
		wide := 0
		for _, t := range texts {
			wide = max(wide, utf8.RuneCountInString(words.Line(t)))
		}
		for i, t := range texts {
			if c.right {
				t = fmt.Sprintf("%*s", wide, t)
			} else {
				t = words.Line(t)
				t += strings.Repeat(" ", wide-utf8.RuneCountInString(t))
			}
			rows[i] = append(rows[i], t)
		}
	}
	return rows
}

// wide is a line a process, which begins with what is to be copied. It reports false, and does nothing, where that does not fit.
func (m *page) wide() bool {
	record := column{name: "TO RECORD IT", text: m.record}
	rows := m.cells(slices.Concat([]column{record}, figures, more))
	last := len(rows[0]) - 1 // the command, of which a part is enough
	needs := leastCommand
	for _, cell := range rows[0][:last] {
		needs += utf8.RuneCountInString(cell) + 2
	}
	if needs > m.width {
		return false
	}
	for _, row := range rows {
		m.line("%s", strings.Join(row, "  "))
	}
	return true
}

// narrow is two lines a process: figures, and what is to be copied.
func (m *page) narrow() {
	pid := column{name: "PID", right: true, text: func(p *machine.Process) string { return strconv.Itoa(p.PID) }}
	for i, row := range m.cells(append([]column{pid}, figures...)) {
		m.line("  %s", strings.Join(row, "  "))
		if i == 0 {
			continue
		}
		p := &m.r.Processes[i-1]
		line := "    " + m.record(p) + "    "
		m.line("%s%s", line, about(p, m.width-utf8.RuneCountInString(line)))
	}
}

// about is the command with the frameworks and the container, in a width. Of the command half of it stays.
func about(p *machine.Process, width int) string {
	command, rest := command(p), strings.Join(append(slices.Clone(p.Frameworks), p.Container), " · ")
	rest = strings.TrimSuffix(rest, " · ")
	if rest == "" {
		return command
	}
	room := width - utf8.RuneCountInString(rest) - 3
	return words.Cut(command, max(room, width/2)) + " · " + rest
}

// shownIdle is how many processes are named that have not used a GPU.
const shownIdle = 3

// notes say what the rows do not: copies, what is not known and why, what was not seen.
func (m *page) notes() {
	before := m.out.Len()
	for i := range m.r.Processes {
		p := &m.r.Processes[i]
		if n := len(p.Workers); n > 0 {
			m.wrapped(fmt.Sprintf("pid %d has %s that it forked, such as data loaders: they use no GPU of their own", p.PID, workers(n)))
		}
		if p.Paused != "" {
			m.wrapped(fmt.Sprintf("pid %d is %s", p.PID, p.Paused))
		}
		if p.Why != "" {
			m.wrapped(fmt.Sprintf("pid %d: %s", p.PID, p.Why))
		}
	}
	m.idle()
	if n := m.r.Hidden; n > 0 {
		python := ""
		if m.r.Python > 0 {
			python = fmt.Sprintf(" (%d of Python)", m.r.Python)
		}
		text := fmt.Sprintf("not looked into: %s%s, of others, for which the rights are missing", processCount(n), python)
		if m.in.Sudo {
			text = fmt.Sprintf("not looked into without sudo: %s of other users%s", processCount(n), python)
		}
		m.wrapped(text)
	}
	for _, text := range slices.Concat(m.r.Missing, m.in.Advice) {
		m.wrapped(text)
	}
	if len(m.r.Processes) > 0 && m.out.Len() > before {
		text := m.out.String()
		m.out.Reset()
		m.out.WriteString(text[:before] + "\n" + text[before:])
	}
}

func workers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}

func processCount(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// idle names processes that will perhaps use a GPU.
func (m *page) idle() {
	if len(m.r.Idle) == 0 {
		return
	}
	var names []string
	for i := range m.r.Idle {
		if i == shownIdle {
			names = append(names, fmt.Sprintf("and %d more", len(m.r.Idle)-i))
			break
		}
		p := &m.r.Idle[i]
		names = append(names, fmt.Sprintf("%d (%s)", p.PID, command(p)))
	}
	m.wrapped("no GPU used so far, but CUDA's libraries are loaded: " + strings.Join(names, ", ") +
		fmt.Sprintf("; wait for it: %sgputrace -p %d --wait", m.sudo(), m.r.Idle[0].PID))
}

// next says what can be done here, of the largest process where there is one.
func (m *page) next() {
	m.out.WriteString("\n")
	row := func(line, what string) { m.line("  %-35s  %s", line, what) }
	if len(m.r.Processes) > 0 {
		pid := m.r.Processes[0].PID
		row(fmt.Sprintf("%sgputrace top -p %d", m.sudo(), pid), "watch it live")
		row(fmt.Sprintf("gputrace who -p %d", pid), "who holds its memory")
	} else {
		row(m.sudo()+"gputrace run -- python train.py", "start a program and record it")
		row(m.sudo()+"gputrace --all --wait", "wait for a process that uses a GPU")
		row("gputrace report FOLDER", "look at a recording, also of elsewhere")
		row(m.sudo()+"gputrace doctor", "whether tracing works on this machine")
	}
	row("gputrace --help", "everything else")
}
