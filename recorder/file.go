// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/kept"
	"github.com/gputrace/gputrace/recording"
)

// temporaryFile returns the path of an unfinished recording. It is in the reserved folder of results, where it can be
// found if gputrace is killed.
func (p *Process) temporaryFile() string {
	return filepath.Join(p.options.Output, p.folder, export.TraceName)
}

// outputOf returns the path of the process's results without a trailing separator; the names of files next to the results begin with it.
func (p *Process) outputOf() string {
	path := filepath.Clean(p.options.Output)
	if p.folder != "" {
		path += "." + p.folder
	}
	return path
}

// startFile begins the recording file. If it fails, the trace continues: the summary and the profiles do not need the file.
func (p *Process) startFile(clock func() uint64, reserved *output.Reservation) {
	p.info = p.describe(clock)
	if reserved == nil {
		return
	}
	if err := p.createFile(reserved); err != nil {
		p.fileErr = fmt.Errorf("%w: there will be no %s", err, export.TraceName)
		p.observer.Warning(p.fileErr)
	}
}

func (p *Process) createFile(reserved *output.Reservation) error {
	if p.folder != "" {
		if err := reserved.Part(p.folder); err != nil {
			return err
		}
	}
	path := p.temporaryFile()
	o := &recording.Options{MaxSize: p.options.MaxSize, MaxAge: p.options.MaxAge}
	w, err := recording.Create(path, p.info, p.joiner.Stack, o)
	if err != nil {
		return err
	}
	p.heap.writer, p.file = w, path
	return output.GiveToUser(path)
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
	err := p.heap.writer.Close(end)
	if end.NotWritten > 0 {
		err = fmt.Errorf("%w: %d events are not in it", err, end.NotWritten)
	}
	if err != nil {
		p.fileErr = err
		p.observer.Warning(err)
	}
}

// adoptFile moves the recording into the folder of results. If there is no room, the recording stays in its place; that
// is an error only if the folder replaces the one that contains the recording.
func (p *Process) adoptFile(folder *output.Folder) error {
	if p.file == "" {
		return nil
	}
	to := filepath.Join(folder.Dir, export.TraceName)
	err := os.Rename(p.file, to)
	if errors.Is(err, syscall.EXDEV) {
		if err = kept.Copy(p.file, to); err == nil {
			err = os.Remove(p.file)
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: the recording stays at %s", err, p.file)
		if folder.Replaces(p.file) {
			return err
		}
		p.observer.Warning(err)
		return nil
	}
	p.file = to
	return nil
}

// dropFile removes an empty recording.
func (p *Process) dropFile() {
	if p.file == "" {
		return
	}
	if err := os.Remove(p.file); err != nil {
		p.observer.Warning(err)
	}
	p.file = ""
}

// giveBackFile saves the recording from a folder that could not be finished.
func (p *Process) giveBackFile(folder *output.Folder) error {
	if p.file == "" || filepath.Dir(p.file) != filepath.Join(folder.Dir, p.folder) {
		return nil
	}
	path := p.temporaryFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Rename(p.file, path); err != nil {
		return err
	}
	p.file = path
	return nil
}
