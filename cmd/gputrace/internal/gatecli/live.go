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

// liveEvery is the interval at which --live-file is replaced. It is longer where the figures take more than 1/liveShare of it.
const (
	liveEvery = time.Second
	liveShare = 50
)

// KeepLive replaces a file with the state of a recording, once a second; an empty path does nothing. stop ends it and returns why the file
// could not be written, which is not tried again.
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
	wait := liveEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		began := time.Now()
		err := writeLive(ctx, r, path)
		wait = max(liveEvery, liveShare*time.Since(began))
		switch {
		case errors.Is(err, recorder.ErrOver), errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return fmt.Errorf("--live-file: %w", err)
		}
	}
}

// writeLive replaces a file with the current state of a recording. Who reads it sees the old one or the new one as a whole.
func writeLive(ctx context.Context, r *recorder.Recorder, path string) error {
	state, err := r.State(ctx)
	if err != nil {
		return err
	}
	var traced []*recorder.Process
	for i := range state.Processes {
		traced = append(traced, state.Processes[i].Process)
	}
	moments, err := r.Moments(ctx, traced)
	if err != nil {
		return err
	}
	var processes []export.LiveProcess
	for _, m := range moments {
		processes = append(processes, export.LiveProcess{PID: m.Process.PID(), View: m.View(), Leaks: m.Leaks})
	}
	if len(processes) == 0 {
		return nil
	}
	var b bytes.Buffer
	if err := export.WriteLive(&b, state.Time, processes); err != nil {
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
