// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recording"
)

// startFile begins the recording. If that fails, the trace continues: nothing else needs the recording.
func (p *Process) startFile(clock func() uint64) {
	p.info = p.describe(clock)
	if p.options.Keeper == nil {
		return
	}
	if d, ok := p.options.Keeper.(Divider); ok {
		p.heap.failed = func(err error) { d.Failed(p, err) }
	}
	w, err := p.options.Keeper.Create(p, p.info, p.joiner.Stack)
	if p.heap.writer = w; err != nil {
		p.observer.Warning(err)
	}
}

// describe returns the header of a recording that begins now, by the clock of the events.
func (p *Process) describe(clock func() uint64) *recording.Info {
	f := p.target.Found()
	driver, _ := p.target.Driver()
	wall, now := recording.BothClocks(clock)
	info := &recording.Info{
		Gputrace: p.options.Version, Started: wall.UTC(), StartedBoot: now, Attached: f.Attached, PID: uint32(p.PID()),
		Rank: p.rank.Recorded(), Labels: p.Labels(), Name: p.about.Name, Exe: p.about.Exe, Cmdline: p.about.Cmdline,
		Python: f.Python, PyTorch: f.PyTorch, CUDA: f.CUDA, Driver: f.Driver, Kernel: process.KernelRelease(), Libraries: p.torchFolders(),
		Memory: f.Memory,
	}
	if f.Autograd != nil {
		info.Backward = f.Autograd.Error()
	}
	if info.Driver == "" {
		info.Driver = driver
	}
	for i := range f.Hooks {
		h := &f.Hooks[i]
		info.Hooks = append(info.Hooks, recording.Hook{Library: h.Library.Name, File: h.File, Functions: h.Functions})
	}
	return info
}

// describeEnd returns the trailer of a recording, without the lines of source. hits covers all processes.
func (p *Process) describeEnd(memory *balance.Input, hits []figures.Hits) *recording.End {
	stacks := p.target.Stacks()
	end := &recording.End{
		Reason: recording.ReasonStopped, Duration: p.end.Sub(p.start), StackRecordsLost: stacks.Lost, StacksOverLimit: p.target.OverLimit(),
		Memory: trailer.Memory(memory), Libraries: p.torchFolders(), Hits: hits,
	}
	if stacks.Raw != (figures.RawStacks{}) {
		end.RawStacks = &stacks.Raw
	}
	end.Cost = p.cost()
	switch p.target.End() {
	case Running, Stopped:
		end.Paused = p.target.Paused()
	case Exited:
		end.Reason = recording.ReasonExited
		if x, ok := p.target.(Exiter); ok {
			if code, known := x.ExitStatus(); known {
				end.ExitStatus = &code
			}
		}
	case Execed:
		end.Reason = recording.ReasonExeced
	}
	end.LostAfter = p.frozen.lost
	if end.After = p.frozen.after; p.frozen.until != 0 {
		end.Reason = recording.ReasonStopped
	}
	if p.options.Many() {
		lost := p.target.Lost()
		end.Lost = &lost
	}
	if c := p.reconciler.Report(); c != nil {
		end.Checks = &figures.Checks{Made: c.Made, Differences: c.Differences, Failed: c.Failed}
	}
	return end
}

// endFile completes the recording.
func (p *Process) endFile(end *recording.End, view *view.View) {
	if p.heap.writer == nil {
		return
	}
	end.Sources = trailer.Sources(view)
	if err := p.options.Keeper.Finish(p, end); err != nil {
		p.observer.Warning(err)
	}
}

// dropFile removes an empty recording.
func (p *Process) dropFile() {
	if p.options.Keeper == nil {
		return
	}
	if err := p.options.Keeper.Drop(p); err != nil {
		p.observer.Warning(err)
	}
}
