//go:build linux && amd64

package main

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process/words"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/hook"
)

// screen is what a person sees while a recording runs.
type screen struct {
	out      *os.File
	terminal bool
	next     time.Time // of the next live line
	shown    bool      // a live line stands on the terminal
	lines    int       // above it, of the same
	allocs   uint64    // at the last live line
	at       time.Time
	warned   map[string]bool
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, terminal: output.IsTerminal(out), warned: map[string]bool{}}
}

func (s *screen) say(format string, args ...any) {
	s.endLive()
	fmt.Fprintln(s.out, words.Text(fmt.Sprintf(format, args...)))
}

// warn prints an error once.
func (s *screen) warn(err error) {
	if !s.warned[err.Error()] {
		s.warned[err.Error()] = true
		s.say("gputrace: warning: %v", err)
	}
}

// banner says what was found and hooked.
func (s *screen) banner(r *session) {
	f := r.tracer.Found()
	how := "perf uprobes"
	if f.Multi {
		how = "uprobe_multi"
	}
	memory := r.tracer.Memory()
	s.say("gputrace %s · pid %d %s%s · Linux %s, %s, %s", version, r.target.PID, commandLine(r.cmdline, r.name), owner(r), kernelRelease(), how, memory.String())
	version, devices := r.driver.told()
	s.say("  %s", strings.Join(append([]string{pythonLine(f), torchLine(f), driverLine(f, version)}, devices...), " · "))
	title := "hooked"
	for _, l := range hook.Libraries {
		for _, line := range libraryLines(f, l) {
			s.say("  %-8s %s", title, line)
			title = ""
		}
	}
	s.say("  unwind tables %d files, %s rows, %d from cache · ready in %.1f s", f.Libraries, count(f.Rows), f.Cached, f.Took.Seconds())
	for _, err := range f.Unreadable {
		s.warn(fmt.Errorf("stacks stop in %w", err))
	}
}

// libraryLines counts the probes of a library, a line a file, or says what is missing.
func libraryLines(f *tracer.Found, l *hook.Library) []string {
	var files, out []string
	count := map[string]int{}
	for _, p := range f.Probes {
		if p.Library != l {
			continue
		}
		if count[p.File] == 0 {
			files = append(files, p.File)
		}
		count[p.File]++
	}
	for _, file := range f.Empty {
		if l.Matches(file) {
			out = append(out, fmt.Sprintf("%-17s %-22s has none of the functions: %s", l.Name, path.Base(file), wanted(l)))
		}
	}
	if len(files) == 0 && len(out) == 0 {
		return missing(f, l)
	}
	for _, file := range files {
		out = append(out, fmt.Sprintf("%-17s %-22s %d %s", l.Name, path.Base(file), count[file], plural("function", count[file])))
	}
	return out
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
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

// missing says that a library is not there. Those of other makers of GPUs are not expected, nor are CUDA's where theirs are.
func missing(f *tracer.Found, l *hook.Library) []string {
	other := func(l *hook.Library) bool { return l == hook.HIP || l == hook.LevelZero }
	if other(l) {
		return nil
	}
	if l != hook.Torch && slices.ContainsFunc(f.Probes, func(p *tracer.Probe) bool { return other(p.Library) }) {
		return nil
	}
	return []string{fmt.Sprintf("%-17s not found: no %s is mapped", l.Name, strings.Join(l.Globs, " or "))}
}

func pythonLine(f *tracer.Found) string {
	if f.Python != "" {
		return "Python " + f.Python
	}
	return fmt.Sprintf("Python: native frames only (%v)", f.PythonErr)
}

func torchLine(f *tracer.Found) string {
	switch {
	case f.PyTorch == "":
		return "PyTorch unknown"
	case f.CUDA == "":
		return "PyTorch " + f.PyTorch
	default:
		return fmt.Sprintf("PyTorch %s (CUDA %s)", f.PyTorch, f.CUDA)
	}
}

// driverLine names the driver by its library's file, else as it names itself.
func driverLine(f *tracer.Found, told string) string {
	return "driver " + cmp.Or(f.Driver, told, "unknown")
}

func owner(r *session) string {
	uid, err := r.target.UID()
	if err != nil {
		return ""
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return " (user " + u.Username + ")"
	}
	return fmt.Sprintf(" (uid %d)", uid)
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func count(n int) string {
	if n < 1e6 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%.1f M", float64(n)/1e6)
}

// live shows the state, at most once a second.
func (s *screen) live(r *session) {
	now := time.Now()
	if now.Before(s.next) {
		return
	}
	books := r.heap.Totals()
	if s.at.IsZero() {
		r.sayBefore(books.Accounts)
	}
	allocs := uint64(0)
	for i := range books.Accounts {
		allocs += books.Accounts[i].Allocs
	}
	rate := 0.0
	if !s.at.IsZero() {
		rate = float64(allocs-s.allocs) / now.Sub(s.at).Seconds()
	}
	s.allocs, s.at = allocs, now
	line := table.LiveLine(&books, table.Live{Now: now, Rate: rate, Lost: r.tracer.Lost()})
	if s.terminal {
		fmt.Fprintf(s.out, "\r\x1b[K%s", line)
		s.shown = true
	} else {
		fmt.Fprintln(s.out, line)
	}
	s.next = now.Add(time.Second)
}

// arrived says that a process of a job is traced.
func (s *screen) arrived(r *session) {
	f := r.tracer.Found()
	s.say("  %s %s · %s · %s · %d functions hooked", r.who(), commandLine(r.cmdline, r.name), pythonLine(f), torchLine(f), len(f.Probes))
}

// maxLive is how many processes have a live line of their own.
const maxLive = 16

// liveJob shows the state of a job, at most once a second: its total, and on a terminal a line a process above it.
func (s *screen) liveJob(j *job) {
	now := time.Now()
	if now.Before(s.next) || len(j.now) == 0 || s.terminal && j.program != nil { // whose output may be the same terminal
		return
	}
	s.next = now.Add(time.Second)
	books := j.books()
	allocs := uint64(0)
	for i := range books.Accounts {
		allocs += books.Accounts[i].Allocs
	}
	rate := 0.0
	if !s.at.IsZero() && allocs > s.allocs { // processes that end take theirs with them
		rate = float64(allocs-s.allocs) / now.Sub(s.at).Seconds()
	}
	s.allocs, s.at = allocs, now
	lost := j.tracer.Lost()
	total := fmt.Sprintf("%s · %s", processes(len(j.now)), table.LiveLine(&books, table.Live{Now: now, Rate: rate, Lost: lost}))
	if !s.terminal {
		fmt.Fprintln(s.out, total)
		return
	}
	s.rewrite(append(s.processLines(j), total))
}

// processLines is a line for each of the first processes.
func (s *screen) processLines(j *job) []string {
	var out []string
	for _, r := range j.ordered() {
		if j.done[r] != nil {
			continue
		}
		if len(out) == maxLive {
			break
		}
		books := r.heap.Totals()
		var live, reserved uint64
		for i := range books.Accounts {
			live, reserved = live+books.Accounts[i].Allocated, reserved+books.Accounts[i].Reserved
		}
		out = append(out, fmt.Sprintf("  %-24s torch %s  reserved %s", r.who(), table.Bytes(live), table.Bytes(reserved)))
	}
	return out
}

// rewrite puts lines where those of the last time are.
func (s *screen) rewrite(lines []string) {
	for range s.lines {
		fmt.Fprint(s.out, "\x1b[A\x1b[2K")
	}
	fmt.Fprintf(s.out, "\r\x1b[K%s", strings.Join(lines, "\n"))
	s.lines, s.shown = len(lines)-1, true
}

// endLive leaves the live line as it stands.
func (s *screen) endLive() {
	if s.shown {
		fmt.Fprintln(s.out)
		s.shown, s.lines = false, 0
	}
}

// ended says why the recording ended, when it was not the user's wish.
func (s *screen) ended(r *session) {
	switch r.tracer.End() {
	case tracer.Exited:
		s.say("pid %d ended", r.target.PID)
	case tracer.Execed:
		s.say("pid %d became another program (%s); attach again to trace that", r.target.PID, r.target.Name())
	}
}
