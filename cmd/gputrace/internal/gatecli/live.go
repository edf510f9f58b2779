// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
)

// liveEvery is the interval at which --live-file is replaced, half of the age that its readers may expect: the recorder can need most of
// the rest to answer. The interval is longer only if making the figures takes more than 1/liveShare of it.
const (
	liveEvery = 500 * time.Millisecond
	liveShare = 10
)

// KeepLive replaces a file with the state of a recording, from the attach on; an empty path does nothing. stop ends it and returns why the
// file could not be written, which is not tried again.
func KeepLive(ctx context.Context, r *recorder.Recorder, path string) (stop func() error) {
	if path == "" {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- writeLiveUntil(ctx, r, path) }()
	return func() error {
		cancel()
		return <-done
	}
}

func writeLiveUntil(ctx context.Context, r *recorder.Recorder, path string) error {
	for {
		began := time.Now()
		worked, err := writeLive(ctx, r, path)
		switch {
		case errors.Is(err, recorder.ErrOver), errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return fmt.Errorf("--live-file: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(began.Add(max(liveEvery, liveShare*worked)))):
		}
	}
}

// writeLive replaces a file with the current state of a recording, and returns how long it worked, without its waits for the recorder. Who
// reads the file sees the old one or the new one as a whole.
func writeLive(ctx context.Context, r *recorder.Recorder, path string) (worked time.Duration, err error) {
	state, err := r.State(ctx)
	if err != nil {
		return 0, err
	}
	var traced []*recorder.Process
	for i := range state.Processes {
		traced = append(traced, state.Processes[i].Process)
	}
	moments, err := r.Moments(ctx, traced)
	if err != nil || len(moments) == 0 {
		return 0, err
	}
	began := time.Now()
	err = writeMoments(moments, path)
	return time.Since(began), err
}

func writeMoments(moments []*recorder.Moment, path string) error {
	var processes []export.LiveProcess
	for _, m := range moments {
		if m.Totals().Events == 0 && m.View().Total() == 0 {
			continue // its memory is not known yet, which 0 bytes would hide
		}
		one := export.LiveProcess{PID: m.Process.PID(), View: m.View(), Leaks: m.Leaks, Judged: m.Judged}
		processes = append(processes, one)
	}
	var b bytes.Buffer
	if err := export.WriteLive(&b, moments[0].Time, processes); err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(next, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := output.GiveToUser(next); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
