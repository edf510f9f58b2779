//go:build amd64

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/tracer"
)

// tracePath is where a recording is while it is made: beside the folder of results, which appears when it is complete. It
// stays there when gputrace is killed.
func tracePath(output string) string { return filepath.Clean(output) + ".gputrace" }

// tracePath is that of this process: those of a job lie beside each other.
func (s *session) tracePath() string {
	if s.folder == "" {
		return tracePath(s.opts.output)
	}
	return tracePath(filepath.Clean(s.opts.output) + "." + s.folder)
}

// startTrace begins the recording. Without one the session goes on: the summary and the profiles need none.
func (s *session) startTrace() {
	path := s.tracePath()
	o := &recording.Options{MaxSize: int64(s.opts.maxSize), MaxAge: s.opts.maxAge}
	s.info = s.describe()
	w, err := recording.Create(path, s.info, s.tracer.Stack, o)
	if err != nil {
		s.screen.warn(fmt.Errorf("%w: there will be no %s", err, export.TraceName))
		return
	}
	s.heap.writer, s.trace = w, path
	if err := output.GiveToUser(path); err != nil {
		s.screen.warn(err)
	}
}

// describe is what a recording begins with.
func (s *session) describe() *recording.Info {
	f := s.tracer.Found()
	driver, _ := s.driver.told()
	info := &recording.Info{
		Gputrace: version, Started: time.Now().UTC(), StartedBoot: bootNanos(), Attached: f.Attached, PID: uint32(s.target.PID),
		Rank: s.rank.recorded(), Name: s.name, Exe: s.exe, Cmdline: s.cmdline, Python: f.Python, PyTorch: f.PyTorch, CUDA: f.CUDA, Driver: f.Driver,
		Kernel: kernelRelease(), Libraries: s.torchPrefixes(),
	}
	memory := s.tracer.Memory()
	info.Memory = memory.String()
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
func (s *session) describeEnd(memory *balance.Input) *recording.End {
	end := &recording.End{
		Reason: recording.ReasonStopped, Duration: s.end.Sub(s.start), StackRecordsLost: s.tracer.StackRecordsLost(),
		StacksOverLimit: s.tracer.StacksOverLimit(),
		Memory:          export.RecordedMemory(memory), Libraries: s.torchPrefixes(),
	}
	if raw := recording.RawStacks(s.tracer.RawStacks()); raw != (recording.RawStacks{}) {
		end.RawStacks = &raw
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
	end.Hits = recordedHits(hits)
	if s.opts.isJob() {
		lost := s.tracer.Lost()
		end.Lost = &lost
	}
	if c := s.resync.report(); c != nil {
		end.Checks = &recording.Checks{Made: c.Made, Differences: c.Differences, Failed: c.Failed}
	}
	return end
}

func recordedHits(hits []tracer.Hits) []recording.Hits {
	var out []recording.Hits
	for _, h := range hits {
		out = append(out, recording.Hits{Probe: h.Probe, Hits: h.Runs, Emitted: h.Emitted, Quiet: h.Quiet, Dropped: h.Dropped})
	}
	return out
}

// endTrace completes the recording.
func (s *session) endTrace(end *recording.End, view *view.View) {
	if s.heap.writer == nil {
		return
	}
	end.Sources = export.RecordedSources(view)
	err := s.heap.writer.Close(end)
	if end.NotWritten > 0 {
		err = fmt.Errorf("%w: %d events are not in it", err, end.NotWritten)
	}
	if err != nil {
		s.screen.warn(err)
	}
}

// adoptTrace moves the recording into the folder of results. When there is no room for it there, it stays where it is.
func (s *session) adoptTrace(folder *output.Folder) {
	if s.trace == "" {
		return
	}
	to := filepath.Join(folder.Dir, export.TraceName)
	err := os.Rename(s.trace, to)
	if errors.Is(err, unix.EXDEV) {
		if err = copyFile(s.trace, to); err == nil {
			err = os.Remove(s.trace)
		}
	}
	if err != nil {
		s.screen.warn(fmt.Errorf("%w: the recording stays at %s", err, s.trace))
		return
	}
	s.trace = to
}

// dropTrace removes a recording in which there is nothing.
func (s *session) dropTrace() {
	if s.trace == "" {
		return
	}
	if err := os.Remove(s.trace); err != nil {
		s.screen.warn(err)
	}
	s.trace = ""
}

// giveBackTrace saves the recording from a folder that could not be finished.
func (s *session) giveBackTrace(folder *output.Folder) error {
	if filepath.Dir(s.trace) != folder.Dir {
		return nil
	}
	path := s.tracePath()
	if err := os.Rename(s.trace, path); err != nil {
		return err
	}
	s.trace = path
	return nil
}

// copyFile copies to another disk. What is left of it when that fails is removed.
func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	if err = errors.Join(err, w.Sync(), w.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// unaskedEvents is of how many events at most a format is made that nobody asked for: a page takes about a second a million.
const unaskedEvents = 5_000_000

// writeViews writes what -f asks for, made of the recording. What could not be made is no reason to lose the rest.
func (s *session) writeViews(folder *output.Folder) error {
	formats, err := recordFormats(s.opts.formats)
	if len(formats) == 0 || err != nil {
		return err
	}
	if s.trace == "" {
		return errors.New("there is no recording to make the formats of -f from")
	}
	if n := s.heap.Totals().Events; !s.opts.asked && n > unaskedEvents {
		return fmt.Errorf("of %d events -f %s would take long: gputrace export makes it of %s", n, s.opts.formats, export.TraceName)
	}
	in, err := openWatched(s.trace, newProgress(os.Stderr), s.screen.warn)
	if err != nil {
		return err
	}
	defer in.Close()
	input, err := in.Input(nil, version, s.screen.warn)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range formats {
		input.File = f.File
		errs = append(errs, folder.Write(f.File, func(w io.Writer) error { return f.Write(w, input) }))
	}
	return errors.Join(errs...)
}

// tellWritten says where everything is, and what opens it.
func (s *session) tellWritten(folder string) {
	row := func(files, open string) { fmt.Fprintf(s.out, "  %-41s %s\n", files, open) }
	fmt.Fprintf(s.out, "\nwrote %s/\n", folder)
	row(strings.Join(profileNames, "  "), "go tool pprof -top "+filepath.Join(folder, profileNames[0]))
	formats, _ := recordFormats(s.opts.formats)
	for _, f := range formats {
		if path := filepath.Join(folder, f.File); fileExists(path) {
			row(f.File, f.What)
		}
	}
	switch path := filepath.Join(folder, export.TraceName); {
	case s.trace == "":
	case fileExists(path):
		row(export.TraceName, "gputrace report "+path)
	default:
		fmt.Fprintf(s.out, "the recording is at %s\n", s.trace)
	}
}
