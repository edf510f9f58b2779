// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/recording/pytorch"
)

// TraceName is the recording in a folder of results.
const TraceName = "trace.gputrace"

// Source is a file that is opened and was read once: a recording, or a memory snapshot of PyTorch's. Close it.
type Source struct {
	Path  string
	Trace *view.Trace
	Info  *recording.Info // never nil; of a snapshot mostly empty
	End   *recording.End  // nil: the recording was cut off, or it is a snapshot
	First recording.Epoch // where the file begins

	close    func() error
	stepOn   string
	search   *steps.Search      // nil: not begun
	leaks    *leaks.Report      // nil: not looked for yet
	before   *leaks.Report      // leaksBefore; nil: not looked for yet
	oom      *oom.Report        // likewise
	answered *answer.Answer     // likewise
	exit     uint64             // Course.Exit of answered
	page     *pagemodel.Builder // of the end, that has seen its replays; nil: there is none
}

// Close closes the file; the trace cannot be replayed any more.
func (s *Source) Close() error { return s.close() }

// Steps are those of the source, which is read for them where they were not found beside something else. Where OpenOptions.StepOn is not
// in it, the error is one of usage.
func (s *Source) Steps() (*steps.Table, error) {
	table, err := s.searched().Table()
	switch {
	case errors.Is(err, steps.ErrNoSuchStep):
		return nil, exit.Usage("--step-on: %w", err)
	case err != nil:
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return table, nil
}

// searched is the search for steps, begun.
func (s *Source) searched() *steps.Search {
	if s.search == nil {
		s.search = steps.NewSearch(s.Trace, &steps.Rules{Library: s.libraries(), On: s.stepOn})
	}
	return s.search
}

// Input is what all formats of a window are made of: the window is found in the source once, for all of them. version is that of
// gputrace; warn is called with what a format leaves out.
func (s *Source) Input(w *Window, version string, warn func(error)) (*Input, error) {
	c := clockOf(s)
	selection, err := c.find(w)
	if err != nil {
		return nil, err
	}
	in := &Input{
		Trace: s.Trace, Info: s.Info, End: s.End, Selection: selection, Path: s.Path, Moment: c.words(w, selection), Version: version, Warn: warn,
		source: s,
	}
	if selection.AtEnd() {
		in.Joined = joinedBefore(s.End)
	}
	return in, nil
}

// OpenOptions are what Open tells of its work. nil and nil fields: nothing.
type OpenOptions struct {
	// Warn is called with what the file does not have: damage, events and stacks that were lost.
	Warn func(error)
	// Watch wraps the reader of a recording, which is read from its beginning at every replay, to show how far it is.
	Watch func(r io.ReaderAt, size int64, path string) io.ReaderAt
	// StepOn is the function with whose calls steps begin, as steps.Rules.On. Empty: found out.
	StepOn string
	// Rules say in which part of a step an allocation is made; nil: the built-in ones.
	Rules *phases.Rules
	// Alone reads nothing but the file: the lines of a recording that was cut off have no text then. Otherwise their text is read from the
	// Python files of this machine, which the recording names.
	Alone bool
	// Done is called after each replay that Open makes.
	Done func()
}

// source returns what opens a Python file; nil: nothing does.
func (o *OpenOptions) source() func(path string) io.Reader {
	if o.Alone {
		return nil
	}
	return openSource
}

func (o *OpenOptions) withDefaults() OpenOptions {
	out := OpenOptions{}
	if o != nil {
		out = *o
	}
	if out.Warn == nil {
		out.Warn = func(error) {}
	}
	if out.Watch == nil {
		out.Watch = func(r io.ReaderAt, _ int64, _ string) io.ReaderAt { return r }
	}
	if out.Done == nil {
		out.Done = func() {}
	}
	return out
}

// Open opens a recording, a folder of results for the recording in it, or a snapshot, and replays it once. Damage is a warning. An
// error carries its exit code: a file that is none of them is exit.Invalid.
func Open(path string, o *OpenOptions) (*Source, error) {
	options := o.withDefaults()
	path, err := recordingIn(path)
	if err != nil {
		return nil, err
	}
	if isSnapshot(path) {
		return openSnapshot(path, &options)
	}
	r, err := recording.OpenAs(path, func(r io.ReaderAt, size int64) io.ReaderAt { return options.Watch(r, size, path) })
	options.Done()
	switch {
	case errors.Is(err, recording.ErrFormat):
		return nil, exit.With(exit.Invalid, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, exit.With(exit.Error, exit.Say(fmt.Sprintf("open recording %s: no such file or directory\n  %s",
			path, recordingsHere(path)), err))
	case err != nil:
		return nil, exit.With(exit.Error, err)
	}
	t, err := traceOf(r, &options)
	options.Done()
	if err != nil {
		return nil, errors.Join(exit.With(exit.Invalid, fmt.Errorf("%s: %w", path, err)), r.Close())
	}
	t.SetHeld(heldBlocks(r.Info().PID, r.End()))
	out := &Source{Path: path, Trace: t, Info: r.Info(), End: r.End(), First: r.First(), close: r.Close, stepOn: options.StepOn}
	out.warn(options.Warn)
	return out, nil
}

// traceOf replays a recording. What it says at its end, of libraries and lines of source, names its sites.
func traceOf(r *recording.Reader, o *OpenOptions) (*view.Trace, error) {
	t, err := view.NewTrace(r, &view.Options{Library: r.Info().Libraries, Source: o.source(), Files: o.source(), Rules: o.Rules})
	if err != nil {
		return nil, err
	}
	var damage *recording.DamageError
	if t.Damage != nil && !errors.As(t.Damage, &damage) {
		return nil, t.Damage
	}
	if end := r.End(); end != nil {
		t.SetOptions(&view.Options{
			Library: end.Libraries, Source: func(path string) io.Reader { return sourceText(end.Sources, path) }, Files: o.source(), Rules: o.Rules,
		})
	}
	return t, nil
}

// recordingIn is the recording of a folder of results, of a job's when it has just one; any other path is itself.
func recordingIn(path string) (string, error) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		return path, nil // what is wrong shows when it is opened
	}
	if trace := filepath.Join(path, TraceName); exists(trace) {
		return trace, nil
	}
	found, err := filepath.Glob(filepath.Join(path, "*", TraceName))
	switch {
	case err != nil:
		return path, nil
	case len(found) == 0:
		return "", exit.With(exit.Invalid, noRecording(path))
	case len(found) > 1:
		return "", exit.Usage("%s has the recordings of %d processes: give the folder of one, such as %s", path, len(found),
			filepath.Dir(found[0]))
	}
	return found[0], nil
}

func noRecording(folder string) error {
	return fmt.Errorf("%s: no recording is in the folder\n  %s", folder, recordingsHere(folder))
}

// recordingsHere is what to do where a path leads to no recording: which ones there are in the working directory, or how one is made.
func recordingsHere(path string) string {
	const shown = 3
	found, err := filepath.Glob(filepath.Join("*", TraceName))
	if err != nil || len(found) == 0 {
		return "none is in this folder; to make one: sudo gputrace -p PID"
	}
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	if meant := words.DidYouMean(path, found); meant != "" {
		return strings.TrimPrefix(meant, ": ")
	}
	text := strings.Join(found[:min(shown, len(found))], ", ")
	if n := len(found) - shown; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return "recordings here: " + text
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// warn says what the file does not have.
func (s *Source) warn(warn func(error)) {
	if s.Trace.Damage != nil {
		warn(s.Trace.Damage)
	}
	if s.End == nil {
		return
	}
	if s.End.Error != "" {
		warn(fmt.Errorf("%s; the last %d events are not in it", words.Line(s.End.Error), s.End.NotWritten))
	}
	if s.End.StacksOverLimit > 0 {
		warn(fmt.Errorf("%d events have a stack that came when there were too many: they are counted as %s", s.End.StacksOverLimit,
			event.StackOverLimit.Placeholder().Frames[0].Func))
	}
	if s.End.Cost != nil && s.End.Cost.LeftOut > 0 {
		warn(errors.New(s.End.Cost.Sentence()))
	}
	if s.End.StackRecordsLost > 0 {
		warn(fmt.Errorf("%d stacks did not fit the ring: their events have none", s.End.StackRecordsLost))
	}
}

// isSnapshot reports whether a file is a pickle. What cannot be read is none.
func isSnapshot(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [2]byte
	_, err = io.ReadFull(f, head[:])
	return err == nil && pytorch.IsSnapshot(head[:])
}

// openSnapshot opens a memory snapshot of PyTorch's.
func openSnapshot(path string, o *OpenOptions) (*Source, error) {
	s, err := pytorch.Open(path)
	switch {
	case errors.Is(err, pytorch.ErrFormat):
		return nil, exit.With(exit.Invalid, err)
	case err != nil:
		return nil, exit.With(exit.Error, err)
	}
	t, err := view.NewTrace(s, &view.Options{Source: o.source(), Rules: o.Rules})
	if err == nil && t.Damage != nil {
		err = t.Damage
	}
	if err != nil {
		return nil, exit.With(exit.Invalid, fmt.Errorf("%s: %w", path, err))
	}
	for _, note := range s.Notes() {
		o.Warn(errors.New(note))
	}
	return &Source{Path: path, Trace: t, Info: s.Info(), close: func() error { return nil }, stepOn: o.StepOn}, nil
}

// openSource opens a Python file of this machine: a recording that was cut off has no lines. Its path comes from the program that
// was traced: it can be anything.
func openSource(path string) io.Reader {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // by now it can be a pipe, which waits
	if err != nil {
		return nil
	}
	return f
}
