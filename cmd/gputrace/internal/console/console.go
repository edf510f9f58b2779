// SPDX-License-Identifier: Apache-2.0

// Package console shows a recording on standard error while it runs: a banner, warnings, and on a terminal a line that is kept
// up to date.
package console

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/notice"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/tracer/hook"
)

// Options say what is shown of a recording.
type Options struct {
	Many      bool   // there may be more than one process
	Program   bool   // a program was started, whose output may be the same terminal
	Follow    bool   // what a process becomes is recorded too
	ReadyFile string // tells scripts that the probes are live; empty: none
	Version   string // of gputrace
}

// Console is what a person sees while a recording runs: a recorder.Observer. It is used by one goroutine.
type Console struct {
	Options
	out      *os.File
	terminal bool
	shown    bool // a live line is on the terminal
	lines    int  // above it, of the same
	before   bool // it was said what was allocated before the attach
	warned   map[string]bool
	begun    *time.Timer // says what is being done; nil: something was said
	opened   *export.Source
	line     *progress.Line // how far opened is read
	printed  bool           // what there is to know of the process
}

// New returns a console that writes to a file or a terminal.
func New(out *os.File, o Options) *Console {
	return &Console{Options: o, out: out, terminal: output.IsTerminal(out), warned: map[string]bool{}}
}

// say prints a text, on a terminal in lines that fit.
func (c *Console) say(format string, args ...any) {
	width := 0
	if c.terminal {
		width = output.Width(c.out)
	}
	var lines []string
	for line := range strings.SplitSeq(words.Text(fmt.Sprintf(format, args...)), "\n") {
		lines = append(lines, words.Lines(line, width, len(line)-len(strings.TrimLeft(line, " "))+4)...)
	}
	c.print(strings.Join(lines, "\n"))
}

// print prints a text as it is.
func (c *Console) print(text string) {
	if c.begun != nil {
		c.begun.Stop()
		c.begun = nil
	}
	c.endLive()
	fmt.Fprintln(c.out, text)
}

// beginAfter is how long nothing is said of an attach.
const beginAfter = 150 * time.Millisecond

// Begin says what is being done, unless something else is said very soon: an attach can take seconds.
func (c *Console) Begin(pid int) {
	text := "looking for processes, Ctrl-C ends it"
	switch {
	case c.Program:
		text = "starting the program"
	case pid != 0:
		text = fmt.Sprintf("attaching to pid %d, Ctrl-C ends it", pid)
	}
	out := c.out
	c.begun = time.AfterFunc(beginAfter, func() { fmt.Fprintln(out, text) })
}

// Stop takes back what Begin was about to say.
func (c *Console) Stop() {
	if c.begun != nil {
		c.begun.Stop()
	}
}

// Event prints an event of the recording.
func (c *Console) Event(e recorder.Event) {
	for _, line := range notice.Lines(e, c.Many) {
		c.Notice(line)
	}
}

// Notice implements recorder.Observer.
func (c *Console) Notice(text string) { c.say("%s", text) }

// Warning prints an error once, with the next step to take where there is one.
func (c *Console) Warning(err error) {
	err = advice.Recording(err)
	if !c.warned[err.Error()] {
		c.warned[err.Error()] = true
		c.print(words.Text(fmt.Sprintf("gputrace: warning: %v", err))) // it can have a line to copy
	}
}

// Ready writes the file that tells scripts that the probes are live.
func (c *Console) Ready() error {
	if c.ReadyFile == "" {
		return nil
	}
	if err := os.WriteFile(c.ReadyFile, fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return output.GiveToUser(c.ReadyFile)
}

// Attached says what was found and hooked: of a job a line a process.
func (c *Console) Attached(p *recorder.Process) {
	if !c.Many {
		c.banner(p)
		return
	}
	f := p.Found()
	c.say("  %s %s · %s · %s · %d functions hooked", p.Who(), p.Command(), notice.Python(f), notice.Torch(f), f.Functions())
	if f.Paused != "" {
		c.say("  %s is %s", p.Who(), f.Paused)
	}
}

func (c *Console) banner(p *recorder.Process) {
	f := p.Found()
	how := "perf uprobes"
	if f.Multi {
		how = "uprobe_multi"
	}
	paused := ""
	if f.Paused != "" {
		paused = ", " + f.Paused
	}
	c.say("gputrace %s · pid %d %s%s%s · Linux %s, %s, %s", c.Version, p.PID(), p.Command(), owner(p), paused, process.KernelRelease(), how,
		f.Memory)
	driver, devices := p.Driver()
	c.say("  %s", strings.Join(append([]string{notice.Python(f), notice.Torch(f), notice.Driver(f, driver)}, devices...), " · "))
	title := "hooked"
	for _, l := range hook.Libraries {
		for _, line := range libraryLines(f, l) {
			c.say("  %-8s %s", title, line)
			title = ""
		}
	}
	c.say("  unwind tables %d files, %s rows, %d from cache · ready in %.1f s", f.Libraries, count(f.Rows), f.Cached, f.Took.Seconds())
	for _, err := range f.Unreadable {
		c.Warning(fmt.Errorf("stacks stop in %w", err))
	}
}

// libraryLines counts the functions of a library, a line a file, or says what is missing.
func libraryLines(f *recorder.Found, l *hook.Library) []string {
	var out []string
	found := false
	for _, file := range f.Empty {
		if l.Matches(file) {
			out = append(out, fmt.Sprintf("%-17s %-22s has none of the functions: %s", l.Name, path.Base(file), wanted(l)))
		}
	}
	for _, h := range f.Hooks {
		if h.Library == l {
			found = true
			out = append(out, fmt.Sprintf("%-17s %-22s %d %s", l.Name, path.Base(h.File), h.Functions, plural("function", h.Functions)))
		}
	}
	if !found && len(out) == 0 {
		return missing(f, l)
	}
	return out
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// wanted names the first functions that were looked for in a library.
func wanted(l *hook.Library) string {
	const shown = 4
	names := l.Symbols()
	if len(names) <= shown {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], " "), len(names)-shown)
}

// missing says that a library is not there. Those of other makers of GPUs are not expected, nor are CUDA's where
// theirs are; and of the frameworks PyTorch, where no other one is.
func missing(f *recorder.Found, l *hook.Library) []string {
	other := func(l *hook.Library) bool { return l == hook.HIP || l == hook.LevelZero }
	own := func(l *hook.Library) bool { return l == hook.BFC || l == hook.CuPy || l == hook.RMM }
	if other(l) || own(l) || l == hook.OTel {
		return nil
	}
	if l == hook.Torch && slices.ContainsFunc(f.Hooks, func(h recorder.Hook) bool { return own(h.Library) }) {
		return nil
	}
	if slices.ContainsFunc(f.Hooks, func(h recorder.Hook) bool { return h.Library == hook.OTel }) {
		return nil
	}
	if l != hook.Torch && slices.ContainsFunc(f.Hooks, func(h recorder.Hook) bool { return other(h.Library) }) {
		return nil
	}
	return []string{fmt.Sprintf("%-17s not found: no %s is mapped", l.Name, strings.Join(l.Globs, " or "))}
}

func owner(p *recorder.Process) string {
	uid, err := p.UID()
	if err != nil {
		return ""
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return " (user " + u.Username + ")"
	}
	return fmt.Sprintf(" (uid %d)", uid)
}

func count(n int) string {
	if n < 1e6 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%.1f M", float64(n)/1e6)
}

// Live shows the state: of a job its total, and on a terminal a line a process above it.
func (c *Console) Live(s *recorder.State) {
	if c.terminal && c.Program || s.Over { // figures that no longer change would look as if the program had stopped
		return
	}
	totals := s.Totals()
	if !c.Many && !c.before {
		c.before = true
		c.sayBefore(&s.Processes[0])
	}
	line := table.LiveLine(&totals, table.Live{Now: s.Time, Rate: s.Rate(), Lost: s.Lost, NoTorch: !s.Torch()})
	if c.Many {
		line = fmt.Sprintf("%s · %s", recorder.Processes(len(s.Processes)), line)
	}
	switch {
	case !c.terminal:
		fmt.Fprintln(c.out, line)
	case c.Many:
		c.rewrite(append(processLines(s), fitLive(line, output.Width(c.out))))
	default:
		c.rewrite([]string{fitLive(line, output.Width(c.out))})
	}
}

// fitLive leaves out the last fields of a live line but one, which says what was lost, until it is shorter than the terminal is wide: what
// takes two lines is not removed with one. 0: the width is not known.
func fitLive(line string, width int) string {
	fields := strings.Split(line, "  ")
	for width > 0 && utf8.RuneCountInString(line) >= width && len(fields) > 2 {
		fields = slices.Delete(fields, len(fields)-2, len(fields)-1)
		line = strings.Join(fields, "  ")
	}
	return line
}

// sayBefore states what was allocated before the attach.
func (c *Console) sayBefore(s *recorder.ProcessState) {
	totals, err := s.Process.Before(s.Totals.Accounts)
	switch {
	case errors.Is(err, reconcile.ErrNoState):
		return // no PyTorch: the driver's own state is not read
	case err != nil:
		c.say("  before attach: unknown until the first allocation (%v)", err)
		return
	}
	said := false
	for _, d := range totals {
		if d.Allocated > 0 || d.Reserved > 0 {
			c.say("  before attach: %s live in torch on cuda:%d, %s reserved (their stacks are not known)", table.Bytes(d.Allocated), d.Device,
				table.Bytes(d.Reserved))
			said = true
		}
	}
	if !said {
		c.say("  before attach: nothing live in torch")
	}
}

// maxLive is how many processes have a live line of their own.
const maxLive = 16

// processLines is a line for each of the first processes.
func processLines(s *recorder.State) []string {
	var out []string
	for i := range s.Processes[:min(maxLive, len(s.Processes))] {
		p := &s.Processes[i]
		out = append(out, fmt.Sprintf("  %-24s %s", p.Process.Who(), table.Allocators(p.Totals.Accounts, "")))
	}
	return out
}

// rewrite puts lines where those of the last time are.
func (c *Console) rewrite(lines []string) {
	for range c.lines {
		fmt.Fprint(c.out, "\x1b[A\x1b[2K")
	}
	fmt.Fprintf(c.out, "\r\x1b[K%s", strings.Join(lines, "\n"))
	c.lines, c.shown = len(lines)-1, true
}

// endLive leaves the live line as it is.
func (c *Console) endLive() {
	if c.shown {
		fmt.Fprintln(c.out)
		c.shown, c.lines = false, 0
	}
}

// Holders prints the holders that were asked for.
func (c *Console) Holders(j *view.Joined) {
	c.endLive()
	if err := table.Held(c.out, table.HeldInput{Title: table.HeldNow, Joined: j, Width: Screen(c.out).Width}); err != nil {
		c.Warning(err)
	}
}

// Ended says why the recording of a process ended, when it was not the user's wish.
func (c *Console) Ended(p *recorder.Process) {
	switch p.End() {
	case recorder.Exited:
		c.say("pid %d ended", p.PID())
	case recorder.Execed:
		c.say("%s", c.replaced(p.PID(), p.NameNow()))
	default:
		c.endLive()
	}
}

// replaced says that a process became another program, and what comes of that.
func (c *Console) replaced(pid int, name string) string {
	then := "attach again to trace it"
	if c.Follow {
		then = "the new program has a recording of its own"
	}
	return fmt.Sprintf("pid %d became another program (%s); %s", pid, name, then)
}
