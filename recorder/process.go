// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/analysis/backward"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/rank"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/recording"
)

// Process is the recording of one process.
type Process struct {
	options  *Options
	observer Observer
	ctx      context.Context // for readings beside the events
	target   Target
	about    *process.About
	rank     rank.Rank
	labels   atomic.Pointer[map[string]string]

	heap       *recordedHeap
	info       *recording.Info
	before     []Totals // from when the trace began
	stateErr   error    // why the allocator's totals are not known
	drained    reconcile.Drained
	joiner     *backward.Joiner
	phases     view.PhaseMemory
	outside    view.PhaseMemory // of the views that other goroutines make
	notes      notes
	reconciler *reconcile.Reconciler
	scans      *holderScans
	growth     *growth     // nil: steps are turned off
	alerts     *alertWatch // nil: no thresholds
	failures   *failures
	samples    samples
	frozen     frozen
	memory     *Memory // as read at the end; nil: not yet

	lost    uint64         // events, as far as recorded
	limited bool           // the warning about too many stacks was shown
	detail  figures.Detail // as last reported
	start   time.Time
	end     time.Time
	done    *concluded // nil: still recording
}

// maxJoined is the maximum number of different backward stacks that are joined to forward stacks, as tracer.DefaultStacks.
const maxJoined = 1 << 16

// begin begins the recording of a process.
func (r *Recorder) begin(t Target) *Process {
	p := &Process{
		options: r.options, observer: r.observer, ctx: r.scans, target: t, about: t.About(), start: time.Now(),
		heap: newRecordedHeap(r.observer.Warning),
	}
	p.rank = rank.Of(p.about.Environ)
	if r.options.Labels != nil {
		p.SetLabels(r.options.Labels(t.PID(), p.about))
	}
	p.joiner = backward.New(t.Stack, p.torchFolders, maxJoined)
	p.startFile(r.source.Now)
	p.reconciler = reconcile.New(p.ctx, p.heap, t, comparisons{p}, &p.drained)
	p.scans = newHolderScans(p, r.slots, r.options)
	p.growth = newGrowth(p)
	p.alerts = newAlertWatch(p)
	p.failures = newFailures(p, r.end)
	p.readTotals()
	return p
}

// PID returns the process ID.
func (p *Process) PID() int { return p.target.PID() }

// Name returns the name of the process's program.
func (p *Process) Name() string { return p.about.Name }

// Rank returns the process's place in its job; nil: not known.
func (p *Process) Rank() *recording.Rank { return p.rank.Recorded() }

// Labels returns the process's labels, which nobody may change; nil: none. It may be called from any goroutine.
func (p *Process) Labels() map[string]string {
	if l := p.labels.Load(); l != nil {
		return *l
	}
	return nil
}

// SetLabels replaces the process's labels. It may be called from any goroutine.
func (p *Process) SetLabels(labels map[string]string) { p.labels.Store(&labels) }

// NameNow returns the name of the program that the process runs now; empty when it has ended.
func (p *Process) NameNow() string { return p.target.NameNow() }

// UID returns the process's effective user ID.
func (p *Process) UID() (int, error) { return p.target.UID() }

// Who returns the process's name for people, with its rank if known.
func (p *Process) Who() string { return p.rank.Recorded().Process(p.PID()) }

// Command returns the command line, shortened.
func (p *Process) Command() string { return words.CommandLine(p.about.Cmdline, p.about.Name) }

// Script returns the command line, shortened, beginning with the script.
func (p *Process) Script() string { return words.ScriptLine(p.about.Cmdline, p.about.Name) }

// Found describes what the attach found.
func (p *Process) Found() *Found { return p.target.Found() }

// Driver returns what is known so far of the GPU's driver: its version, and a line for each device that the process sees.
func (p *Process) Driver() (version string, devices []string) { return p.target.Driver() }

// End returns why the process's events ended.
func (p *Process) End() End { return p.target.End() }

// View returns a sorted copy of the current live set. It must be called from the goroutine of Run, or after Run.
func (p *Process) View() *view.View { return p.viewOf(p.heap.Snapshot()) }

func (p *Process) viewOf(s *heap.Snapshot) *view.View {
	return view.New(s, p.joiner.Stack, &view.Options{Library: p.torchFolders(), Source: p.target.File, Phases: &p.phases})
}

// torchFolders returns the folders of PyTorch's own Python files, if they are not in the usual places.
func (p *Process) torchFolders() []string {
	var out []string
	for _, h := range p.target.Found().Hooks {
		if prefix := stacks.PackagePrefix(h.File); prefix != "" {
			out = append(out, prefix)
		}
	}
	return out
}

// take applies events.
func (p *Process) take(events []event.Event) {
	events = events[:p.recorded(events)]
	p.joiner.Join(events)
	p.notes.see(events)
	for rest := events; ; {
		n := p.failures.next(rest)
		p.heap.take(rest[:n])
		if !p.failures.seen {
			break
		}
		p.failures.failed(&rest[n-1])
		rest = rest[n:]
	}
	if p.growth != nil {
		p.growth.taken()
	}
	if p.alerts != nil {
		p.alerts.see(events)
	}
}

// Leaks returns the leak report; nil when steps are turned off. The report is complete when the process's recording is over.
func (p *Process) Leaks() *leaks.Report {
	if p.growth == nil {
		return nil
	}
	return p.growth.report
}

// look requests a comparison and a scan, both shown.
func (p *Process) look() {
	p.reconciler.Ask()
	p.scans.ask()
}

// finish requests the last comparison and scan.
func (p *Process) finish() {
	p.reconciler.Finish()
	p.scans.finish()
}

// settled reports whether the last comparison and scan were made.
func (p *Process) settled() bool { return p.frozen.over && p.scans.over }

// advance does the work beside the events that is due; begun is when the read of the applied events began.
func (p *Process) advance(begun uint64, events []event.Event, emptied bool) {
	p.drained.Applied(begun, events, emptied)
	if until := p.frozen.until; until != 0 && (p.drained.To > until || p.frozen.after > 0) {
		p.stop()
	}
	if p.frozen.over {
		p.scans.step()
		return
	}
	p.reconciler.Step()
	p.scans.step()
	p.failures.step()
	if p.growth != nil {
		p.growth.step()
	}
	if p.alerts != nil {
		p.alerts.step()
	}
	if p.reconciler.Idle() {
		p.divide()
		p.heap.checkpoint()
	}
}

// warnLimit warns once that not all stacks are kept.
func (p *Process) warnLimit() {
	if !p.limited && p.target.OverLimit() > 0 {
		p.limited = true
		p.observer.Warning(fmt.Errorf("there are more than %d different stacks: further ones are counted as %s (--max-stacks)",
			p.options.MaxStacks, event.StackOverLimit.Placeholder().Frames[0].Func))
	}
}

// cost returns what tracing has cost the process; nil: it is not measured.
func (p *Process) cost() *figures.Cost {
	if t, ok := p.target.(Coster); ok {
		c := t.Cost()
		return &c
	}
	return nil
}

// reportDetail reports each change of the share of allocations with a stack.
func (p *Process) reportDetail() {
	c := p.cost()
	if c == nil || c.Detail == p.detail {
		return
	}
	used := fmt.Sprintf("tracing takes %.2f %% of a CPU of %s, its budget is %s", 100*c.Used, p.Who(), c.Limit())
	if c.Detail > p.detail {
		p.observer.Warning(fmt.Errorf("%s: %s from now on; bytes stay exact", used, c.Detail.Words()))
	} else {
		p.observer.Notice(fmt.Sprintf("%s: %s again", used, c.Detail.Words()))
	}
	p.detail = c.Detail
}

// Processes returns a number of processes in words.
func Processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// Memory reads where the process's GPU memory is now. It may be called from any goroutine.
func (p *Process) Memory(ctx context.Context) *Memory { return p.target.Memory(ctx) }
