// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/backward"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
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
	ctx      context.Context // of what is read beside the events
	target   Target
	about    *process.About
	rank     rank.Rank
	folder   string // its own in that of the results; empty: that itself
	file     string // where the recording is; empty: there is none
	fileErr  error  // why the recording does not have all

	heap       *recordedHeap
	info       *recording.Info
	before     []Totals // when the trace began
	stateErr   error    // why the allocator's totals are not known
	drained    reconcile.Drained
	joiner     *backward.Joiner
	phases     view.PhaseMemory
	notes      notes
	reconciler *reconcile.Reconciler
	scans      *holderScans
	growth     *growth     // nil: steps are left off
	alerts     *alertWatch // nil: there are no thresholds
	failures   *failures
	samples    samples
	frozen     frozen
	memory     *Memory // as it was read at the end; nil: not yet

	lost    uint64 // events, as far as they are noted
	limited bool   // it was said that there are too many stacks
	start   time.Time
	end     time.Time
	done    *concluded // nil: it is being recorded
}

// maxJoined is how many different stacks of the backward pass are joined to those of forward, as tracer.DefaultStacks.
const maxJoined = 1 << 16

// begin begins the recording of a process.
func (r *Recorder) begin(t Target) *Process {
	p := &Process{
		options: r.options, observer: r.observer, ctx: r.scans, target: t, about: t.About(), start: time.Now(),
		heap: newRecordedHeap(r.observer.Warning),
	}
	p.rank = rank.Of(p.about.Environ)
	if r.options.Many() {
		p.folder = p.rank.Folder(t.PID())
		if r.folders[p.folder]++; r.folders[p.folder] > 1 {
			p.folder = fmt.Sprintf("%s.%d", p.folder, r.folders[p.folder])
		}
	}
	p.joiner = backward.New(t.Stack, p.torchFolders, maxJoined)
	p.startFile(r.source.Now(), r.reserved)
	p.reconciler = reconcile.New(p.ctx, p.heap, t, p.observer, &p.drained)
	p.scans = newHolderScans(p, r.slots, r.options)
	p.growth = newGrowth(p)
	p.alerts = newAlertWatch(p)
	p.failures = newFailures(p, r.end)
	p.readTotals()
	return p
}

// PID is the number of the process.
func (p *Process) PID() int { return p.target.PID() }

// Name is the name of its program.
func (p *Process) Name() string { return p.about.Name }

// NameNow is the name of the program that the process runs now, if it still does.
func (p *Process) NameNow() string { return p.target.NameNow() }

// UID is its effective user.
func (p *Process) UID() (int, error) { return p.target.UID() }

// Who names it for people, by its rank where that is known.
func (p *Process) Who() string { return p.rank.Recorded().Process(p.PID()) }

// Command is its command line, shortened.
func (p *Process) Command() string { return words.CommandLine(p.about.Cmdline, p.about.Name) }

// Script is its command line, shortened, with the script in front.
func (p *Process) Script() string { return words.ScriptLine(p.about.Cmdline, p.about.Name) }

// Found describes the attach.
func (p *Process) Found() *Found { return p.target.Found() }

// Driver is what is known so far of the GPU's driver: its version, and a line for each device that the process sees.
func (p *Process) Driver() (version string, devices []string) { return p.target.Driver() }

// End says why its events ended.
func (p *Process) End() End { return p.target.End() }

// View puts the live set of now in order. It must be called from the goroutine of Run, or after that.
func (p *Process) View() *view.View { return p.viewOf(p.heap.Snapshot()) }

func (p *Process) viewOf(s *heap.Snapshot) *view.View {
	return view.New(s, p.joiner.Stack, &view.Options{Library: p.torchFolders(), Source: p.target.File, Phases: &p.phases})
}

// torchFolders tells PyTorch's own Python files where they are not in the usual places.
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

// Leaks says whether memory grew; nil: steps were left off. It is complete when the process's recording is over.
func (p *Process) Leaks() *leaks.Report {
	if p.growth == nil {
		return nil
	}
	return p.growth.report
}

// look asks for a comparison and a scan that are shown.
func (p *Process) look() {
	p.reconciler.Ask()
	p.scans.ask()
}

// finish asks for the last comparison and scan.
func (p *Process) finish() {
	p.reconciler.Finish()
	p.scans.finish()
}

// settled reports whether those were made.
func (p *Process) settled() bool { return p.frozen.over && p.scans.over }

// advance goes on with what is done beside the events: those of a read that began at a time were applied.
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
		p.heap.checkpoint()
	}
}

// warnLimit says once that not all stacks are kept.
func (p *Process) warnLimit() {
	if !p.limited && p.target.OverLimit() > 0 {
		p.limited = true
		p.observer.Warning(fmt.Errorf("there are more than %d different stacks: further ones are counted as %s (--max-stacks)",
			p.options.MaxStacks, event.OverLimit))
	}
}

// Processes is a number of processes in words.
func Processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// Memory reads where the process's GPU memory is now. It may be called from any goroutine.
func (p *Process) Memory(ctx context.Context) *Memory { return p.target.Memory(ctx) }
