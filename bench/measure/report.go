// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
)

// report is everything that was measured.
type report struct {
	options Options
	machine string
	results []result
	attach  attachResult
	who     []whoResult

	recording []recordingResult
	views     *viewsResult // nil: not measured
	feed      *feedsResult // the same
	cores     []result     // by the number of threads
}

// goal is the largest price of a hit in a training loop, in microseconds beyond an empty uprobe.
const goal = 2.2

// table is a Markdown table: its first row is the head.
type table [][]string

func (t *table) row(cells ...string) { *t = append(*t, cells) }

func (t table) print(w io.Writer) {
	t[:1].printHead(w)
	t[1:].printRows(w)
	fmt.Fprintln(w)
}

// printHead begins a table whose rows follow one by one.
func (t table) printHead(w io.Writer) {
	t.printRows(w)
	fmt.Fprintf(w, "|%s\n", strings.Repeat("---|", len(t[0])))
}

func (t table) printRows(w io.Writer) {
	for _, row := range t {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

func printReport(out io.Writer, r report) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s\n\nMedians of %d rounds of %s, every mode in turn in one process; in parentheses the least and the largest round.\n\n",
		r.machine, r.options.Rounds, r.options.Window)
	if len(r.results) > 0 {
		costs(r.results, w)
		kernelTimes(r.results, w)
		slowdowns(r.results, w)
		shares(r.results, w)
		loads(r.results, w)
	}
	if len(r.attach.cold) > 0 {
		attachTimes(r.attach, w)
	}
	if len(r.who) > 0 {
		whoTimes(r.who, w)
	}
	if len(r.recording) > 0 {
		recordingTimes(r.recording, w)
	}
	if r.views != nil {
		viewsTimes(r.views, w)
	}
	if r.feed != nil {
		feedTimes(r.feed, w)
	}
	if len(r.cores) > 0 {
		coresTimes(r.cores, w)
	}
	return w.Flush()
}

func costs(results []result, w io.Writer) {
	fmt.Fprintf(w, "Price of a hit to the program, in µs of its CPU time. A hit is one allocation or one free. The median step of a window "+
		"counts, "+
		"against that of the untraced job just before and after. Goal for the training scripts: %.1f beyond the empty uprobe.\n\n", goal)
	t := table{{"workload", "hits per step", "frames native + Python", "empty uprobe", "gputrace beyond it", "with stacks of frees too"}}
	for i := range results {
		r := &results[i]
		t.row(r.workload.title, fmt.Sprintf("%.0f", r.hits()),
			fmt.Sprintf("%.0f + %.0f", r.load.native, r.load.python),
			r.of(empty, perHit).text("%.2f"),
			r.beyond(traced, empty).text("%.2f"),
			r.beyond(freeStacks, empty).text("%.2f"))
	}
	t.print(w)
}

func slowdowns(results []result, w io.Writer) {
	fmt.Fprintf(w, "Time of a training step, as a multiple of the untraced one.\n\n")
	head := []string{"script", "untraced step"}
	for _, m := range modes[1:] {
		head = append(head, m.name)
	}
	t := table{head}
	for i := range results {
		r := &results[i]
		if !r.workload.training {
			continue
		}
		row := []string{r.workload.title, r.of(untraced, func(f figure) float64 { return f.ns / 1e6 }).text("%.1f") + " ms"}
		for _, m := range modes[1:] {
			row = append(row, orMissing(r.of(m.name, slowdown)))
		}
		t.row(row...)
	}
	t.print(w)
}

func shares(results []result, w io.Writer) {
	fmt.Fprintf(w, "What gputrace adds to a step, as a share of what PyTorch's own recorder adds to it in the same round. Goals for "+
		"gpt.py: 0.85 of the former, 0.6 of the latter.\n\n")
	t := table{{"script", recorderPython, recorderAll}}
	for i := range results {
		if r := &results[i]; r.workload.training {
			t.row(r.workload.title, orMissing(r.added(traced, recorderPython)), orMissing(r.added(traced, recorderAll)))
		}
	}
	t.print(w)
}

func orMissing(s series) string {
	if len(s) == 0 {
		return errNotInstalled.Error()
	}
	return s.text("%.2f")
}

func loads(results []result, w io.Writer) {
	fmt.Fprintf(w, "What the tracer had to do, in the last window. Raw stacks are complete ones that user space unwound from a copy.\n\n")
	t := table{{"workload", "events", "lost", "stacks complete", "of these raw", "partial, by reason", "different stacks", "files with code",
		"unwind rows",
		"Python", "PyTorch", "probe"}}
	for i := range results {
		r := &results[i]
		complete, raw, partial := r.load.shares()
		t.row(r.workload.title, fmt.Sprint(r.load.hits), fmt.Sprint(r.load.lost), complete, raw, partial, fmt.Sprint(r.load.unique),
			fmt.Sprint(r.found.Libraries), fmt.Sprint(r.found.Rows), orDash(r.found.Python), orDash(r.found.PyTorch),
			fmt.Sprintf("%s, entry+%d", path.Base(r.probe.file), r.probe.offset))
	}
	t.print(w)
}

// shares are those of all stacks that are complete, that are so thanks to a copy, and that are not.
func (l *load) shares() (complete, raw, partial string) {
	if l.stacks == 0 {
		return "-", "-", "-"
	}
	share := func(n uint64) string { return fmt.Sprintf("%.3f %%", 100*float64(n)/float64(l.stacks)) }
	whole, reasons := uint64(0), []string{}
	for _, status := range slices.Sorted(maps.Keys(l.ends)) {
		if status.Complete() {
			whole += l.ends[status]
		} else {
			reasons = append(reasons, status.String()+" "+share(l.ends[status]))
		}
	}
	return share(whole), share(l.ends[event.StatusUnwound]), orDash(strings.Join(reasons, ", "))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func kernelTimes(results []result, w io.Writer) {
	fmt.Fprintf(w, "The same by the kernel's clock around the programs: mean ns of a run, without the trap and without what a run pushes "+
		"out of the caches. "+
		"The empty program's figure is the clock itself.\n\n")
	head := []string{"workload"}
	for i := range modes {
		if modes[i].ours {
			head = append(head, modes[i].name)
		}
	}
	t := table{append(head, "gputrace less empty")}
	for i := range results {
		row := []string{results[i].workload.title}
		perRun := results[i].perRun()
		for _, c := range results[i].clocks {
			row = append(row, fmt.Sprintf("%.0f", c.perRun()))
		}
		t.row(append(row, fmt.Sprintf("%.0f", perRun[traced]-perRun[empty]))...)
	}
	t.print(w)
}

func attachTimes(a attachResult, w io.Writer) {
	fmt.Fprintf(w, "The program itself, on %s.py while it trains.\n\n", attachScript)
	t := table{{"", "no unwind tables cached", "cached"}}
	t.row("command to the ready file, s: probes live, the allocator's state read (2 s at most)", a.cold.text("%.2f"), a.warm.text("%.2f"))
	t.row("of that to live probes, as the banner says, s", a.coldBanner.text("%.1f"), a.warmBanner.text("%.1f"))
	t.row("Ctrl-C to files written, s", "", a.ending.text("%.2f"))
	t.row("largest resident size, MiB", a.coldMemory.text("%.0f"), a.memory.text("%.0f"))
	t.row("of its own, not files, while it traces, MiB", "", a.own.text("%.0f"))
	t.print(w)
}

// describeMachine says where the figures were measured.
func describeMachine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%s, %d cores, Linux %s, %s, %s", cpuModel(), runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]),
		runtime.Version(), bpftraceVersion())
}

func bpftraceVersion() string {
	b, err := exec.Command("bpftrace", "--version").Output()
	if err != nil {
		return "no bpftrace"
	}
	return strings.TrimSpace(string(b))
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	for _, line := range strings.Split(string(b), "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown CPU"
}
