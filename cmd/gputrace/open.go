package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/recording/pytorch"
)

// opened is a file that can be looked at: a recording, or a snapshot of PyTorch's.
type opened struct {
	path  string
	trace *view.Trace
	info  *recording.Info // never nil; of a snapshot mostly empty
	end   *recording.End  // nil: the recording was cut off, or it is a snapshot
	first recording.Epoch // where the file begins
	close func() error
}

// openTrace opens a file and reads it once. Damage is a warning.
func openTrace(path string, warn func(error)) (*opened, error) { return openWatched(path, nil, warn) }

// openWatched is openTrace with a line on the terminal, whenever the file is read.
func openWatched(path string, p *progress, warn func(error)) (*opened, error) {
	path, err := recordingIn(path)
	if err != nil {
		return nil, err
	}
	if isSnapshot(path) {
		return openSnapshot(path, warn)
	}
	r, err := recording.OpenAs(path, func(r io.ReaderAt, size int64) io.ReaderAt { return p.watch(r, size, path) })
	p.clear()
	switch {
	case errors.Is(err, recording.ErrFormat):
		return nil, coded(exitInvalid, err)
	case err != nil:
		return nil, coded(exitError, err)
	}
	t, err := view.NewTrace(r, &view.Options{Library: r.Info().Libraries, Source: openSource})
	p.clear()
	if err == nil && t.Damage != nil {
		var damage *recording.DamageError
		if !errors.As(t.Damage, &damage) {
			err = t.Damage
		}
	}
	if err != nil {
		return nil, errors.Join(coded(exitInvalid, fmt.Errorf("%s: %w", path, err)), r.Close())
	}
	if end := r.End(); end != nil {
		t.SetOptions(&view.Options{
			Library: end.Libraries, Source: func(path string) io.Reader { return sourceText(end.Sources, path) },
		})
	}
	o := &opened{path: path, trace: t, info: r.Info(), end: r.End(), first: r.First(), close: r.Close}
	o.warn(warn)
	return o, nil
}

// recordingIn is the recording of a folder of results, of a job's when it has just one; any other path is itself.
func recordingIn(path string) (string, error) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		return path, nil // whoever opens it says what is wrong
	}
	if trace := filepath.Join(path, traceName); exists(trace) {
		return trace, nil
	}
	found, err := filepath.Glob(filepath.Join(path, "*", traceName))
	if err != nil || len(found) == 0 {
		return path, nil
	}
	if len(found) > 1 {
		return "", usage("%s has the recordings of %d processes: give the folder of one, such as %s", path, len(found), filepath.Dir(found[0]))
	}
	return found[0], nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// warn says what the file does not have.
func (o *opened) warn(warn func(error)) {
	if o.trace.Damage != nil {
		warn(o.trace.Damage)
	}
	if o.end == nil {
		return
	}
	if o.end.Error != "" {
		warn(fmt.Errorf("%s; the last %d events are not in it", oneLine(o.end.Error), o.end.NotWritten))
	}
	if o.end.StacksOverLimit > 0 {
		warn(fmt.Errorf("%d events have a stack that came when there were too many: they are counted as %s", o.end.StacksOverLimit, event.OverLimit))
	}
	if o.end.StackRecordsLost > 0 {
		warn(fmt.Errorf("%d stacks did not fit the ring: their events have none", o.end.StackRecordsLost))
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
func openSnapshot(path string, warn func(error)) (*opened, error) {
	s, err := pytorch.Open(path)
	switch {
	case errors.Is(err, pytorch.ErrFormat):
		return nil, coded(exitInvalid, err)
	case err != nil:
		return nil, coded(exitError, err)
	}
	t, err := view.NewTrace(s, &view.Options{Source: openSource})
	if err == nil && t.Damage != nil {
		err = t.Damage
	}
	if err != nil {
		return nil, coded(exitInvalid, fmt.Errorf("%s: %w", path, err))
	}
	for _, note := range s.Notes() {
		warn(errors.New(note))
	}
	return &opened{path: path, trace: t, info: s.Info(), close: func() error { return nil }}, nil
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
