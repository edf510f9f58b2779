package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gputrace/gputrace/analysis"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/tracer"
)

// tracePath is where a recording is while it is made: beside the folder of results, which appears when it is complete. It
// stays there when gputrace is killed.
func tracePath(output string) string { return filepath.Clean(output) + ".gputrace" }

// startTrace begins the recording. Without one the session goes on: the summary and the profiles need none.
func (s *session) startTrace() {
	path := tracePath(s.opts.output)
	o := &recording.Options{MaxSize: int64(s.opts.maxSize), MaxAge: s.opts.maxAge}
	s.info = s.describe()
	w, err := recording.Create(path, s.info, s.tracer.Stack, o)
	if err != nil {
		s.screen.warn(fmt.Errorf("%w: there will be no %s", err, traceName))
		return
	}
	s.heap.writer = w
	if err := giveToUser(path); err != nil {
		s.screen.warn(err)
	}
}

// describe is what a recording begins with.
func (s *session) describe() *recording.Info {
	f := s.tracer.Found()
	driver, _ := s.driver.told()
	info := &recording.Info{
		Gputrace: version, Started: time.Now().UTC(), StartedBoot: bootNanos(), Attached: f.Attached, PID: uint32(s.target.PID),
		Name: s.name, Exe: s.exe, Cmdline: s.cmdline, Python: f.Python, PyTorch: f.PyTorch, CUDA: f.CUDA, Driver: f.Driver,
		Kernel: kernelRelease(), Libraries: s.torchPrefixes(),
	}
	if info.Driver == "" {
		info.Driver = driver
	}
	at := map[string]int{}
	for _, p := range f.Probes {
		key := p.Library.Name + " " + p.File
		i, ok := at[key]
		if !ok {
			i = len(info.Hooks)
			at[key] = i
			info.Hooks = append(info.Hooks, recording.Hook{Library: p.Library.Name, File: p.File})
		}
		info.Hooks[i].Functions++
	}
	return info
}

// describeEnd is what a recording ends with, but for the lines of source.
func (s *session) describeEnd(memory *analysis.BalanceInput) *recording.End {
	end := &recording.End{
		Reason: recording.ReasonStopped, Duration: s.end.Sub(s.start), StackRecordsLost: s.tracer.StackRecordsLost(),
		Memory: memoryOf(memory), Libraries: s.torchPrefixes(),
	}
	switch s.tracer.End() {
	case tracer.Exited:
		end.Reason = recording.ReasonExited
	case tracer.Execed:
		end.Reason = recording.ReasonExeced
	}
	hits, err := s.tracer.Hits()
	if err != nil {
		s.screen.warn(err)
	}
	for _, h := range hits {
		end.Hits = append(end.Hits, recording.Hits{Probe: h.Probe, Hits: h.Runs, Emitted: h.Emitted, Quiet: h.Quiet, Dropped: h.Dropped})
	}
	if c := s.resync.report(); c != nil {
		end.Checks = &recording.Checks{Made: c.Made, Differences: c.Differences, Failed: c.Failed}
	}
	return end
}

// endTrace completes the recording.
func (s *session) endTrace(end *recording.End, view *analysis.View) {
	if s.heap.writer == nil {
		return
	}
	end.Sources = sourcesOf(view)
	err := s.heap.writer.Close(end)
	if end.NotWritten > 0 {
		err = fmt.Errorf("%w: %d events are not in it", err, end.NotWritten)
	}
	if err != nil {
		s.screen.warn(err)
	}
}

// adoptTrace moves the recording into the folder of results. Where that is on another disk, it stays where it is.
func (s *session) adoptTrace(folder *outputFolder) (adopted bool) {
	if s.heap.writer == nil {
		return false
	}
	return os.Rename(tracePath(s.opts.output), filepath.Join(folder.tmp, traceName)) == nil
}
