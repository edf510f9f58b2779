// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/hook"
)

// mode is one way to run a job.
type mode struct {
	name string
	on   func(*subject) (off func() error, err error)
	// training: only for training scripts.
	training bool
	// ours: this process loads BPF programs for it.
	ours bool
}

// Names of the modes that the tables single out.
const (
	untraced   = "untraced"
	empty      = "empty uprobe"
	traced     = "gputrace"
	freeStacks = "gputrace --free-stacks"

	recorderPython = `recorder, stacks="python"`
	recorderAll    = `recorder, stacks="all"`
)

// modes lists what is compared. Each leaves the job as it found it.
var modes = []mode{
	{name: untraced, on: func(*subject) (func() error, error) { return func() error { return nil }, nil }},
	{name: empty, ours: true, on: func(s *subject) (func() error, error) {
		return emptyProbe(s.job.target.PID, s.found.Multi, s.probe)
	}},
	{name: traced, ours: true, on: func(s *subject) (func() error, error) { return s.trace(false) }},
	{name: freeStacks, ours: true, on: func(s *subject) (func() error, error) { return s.trace(true) }},
	{name: recorderPython, on: recorder("python"), training: true},
	{name: recorderAll, on: recorder("all"), training: true},
	{name: "bpftrace, counting only", on: (*subject).count, training: true},
}

// errNotInstalled leaves a mode out of the tables.
var errNotInstalled = errors.New("not installed")

// subject is a job with what is known of it.
type subject struct {
	env   *environment
	job   *job
	found *tracer.Found
	probe *probe // of the allocator's report
	load  load   // of the last trace
}

// newSubject attaches once: to learn where the probe sits, and to fill the cache of unwind tables.
func newSubject(e *environment, j *job) (*subject, error) {
	t := tracer.Open(&tracer.Options{CacheDir: e.cache})
	defer t.Close()
	target, err := t.Add(j.target)
	if err != nil {
		return nil, err
	}
	s := &subject{env: e, job: j, found: target.Found()}
	for _, p := range s.found.Probes {
		if p.Library == hook.Torch && strings.Contains(p.Symbol, "reportMemoryUsageToProfiler") {
			s.probe = &probe{p.File, p.Symbol, p.Offset}
			return s, nil
		}
	}
	return nil, errors.New("the allocator's report is not among the probes")
}

func (s *subject) trace(freeStacks bool) (func() error, error) {
	l, err := startLive(s.job, s.env, freeStacks)
	if err != nil {
		return nil, err
	}
	return func() error {
		load, err := l.stop()
		if !freeStacks {
			s.load = load
		}
		return err
	}, nil
}

// recorder turns PyTorch's own memory history on.
func recorder(stacks string) func(*subject) (func() error, error) {
	return func(s *subject) (func() error, error) {
		return func() error { return s.job.turnRecorder("off") }, s.job.turnRecorder(stacks)
	}
}

func (j *job) turnRecorder(to string) error {
	// Written beside and renamed, so that the script never reads half a word.
	tmp := j.switchFile + ".new"
	if err := os.WriteFile(tmp, []byte(to), 0o644); err != nil {
		return fmt.Errorf("turn the recorder to %s: %w", to, err)
	}
	if err := os.Rename(tmp, j.switchFile); err != nil {
		return fmt.Errorf("turn the recorder to %s: %w", to, err)
	}
	return nil
}

// count runs bpftrace with the least that it can do at the function: one counter, no stack.
func (s *subject) count() (func() error, error) {
	program, err := exec.LookPath("bpftrace")
	if err != nil {
		return nil, errNotInstalled
	}
	script := fmt.Sprintf("uprobe:%s:%s { @ = count(); }", s.probe.file, s.probe.symbol)
	cmd := exec.Command(program, "-B", "none", "-p", fmt.Sprint(s.job.target.PID), "-e", script)
	out := newUntilWord("Attaching") // its first line: "Attaching 1 probe..."
	var complaints bytes.Buffer      // it has some even when all goes well
	cmd.Stdout, cmd.Stderr = out, &complaints
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start bpftrace: %w", err)
	}
	off := func() error {
		_ = cmd.Process.Signal(syscall.SIGINT)
		return cmd.Wait()
	}
	select {
	case <-out.seen:
		return off, nil
	case <-time.After(30 * time.Second):
		return nil, errors.Join(errors.New("bpftrace did not attach"), off(), errors.New(complaints.String()))
	}
}

// untilWord waits for a word in what a program prints.
type untilWord struct {
	word []byte
	seen chan struct{} // closed when it was there
	done bool
}

func newUntilWord(word string) *untilWord {
	return &untilWord{word: []byte(word), seen: make(chan struct{})}
}

// Write implements io.Writer.
func (u *untilWord) Write(b []byte) (int, error) {
	if !u.done && bytes.Contains(b, u.word) {
		u.done = true
		close(u.seen)
	}
	return len(b), nil
}
