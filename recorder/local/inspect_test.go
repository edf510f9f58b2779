// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
)

// exiting reads a state once, and then nothing any more, as of a program whose destructors run.
type exiting struct {
	stateReader
	reads int
}

func (e *exiting) Totals(context.Context) ([]inspect.DeviceTotals, error) {
	if e.reads++; e.reads > 1 {
		return nil, fmt.Errorf("read: %w", inspect.ErrUnknownLayout)
	}
	return nil, nil
}

// TestExiting: a state that was read before and that is not there any more means that the program ends, once the kernel knows it.
func TestExiting(t *testing.T) {
	for _, c := range []struct {
		seconds string
		reads   int // before the first look
		want    error
	}{
		{"0.3", 0, process.ErrEnded},
		{"0.3", 1, inspect.ErrUnknownLayout}, // no state was ever read
		{"60", 0, inspect.ErrUnknownLayout},
	} {
		cmd := exec.CommandContext(t.Context(), "sleep", c.seconds)
		require.NoError(t, cmd.Start())
		p, err := process.Open(cmd.Process.Pid)
		require.NoError(t, err)
		i := &inspector{process: p, use: make(chan struct{}, 1), find: func(*process.Process) (stateReader, error) {
			return &exiting{reads: c.reads}, nil
		}}
		if c.reads == 0 {
			_, err = i.Totals(t.Context())
			require.NoError(t, err)
		}
		begun := time.Now()
		_, err = i.Totals(t.Context())
		require.ErrorIs(t, err, c.want, c.seconds)
		require.Less(t, time.Since(begun), 2*leaveTime)
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
}
