// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// report runs gputrace report in another folder, and gives what it prints.
func report(t *testing.T, path string, more ...string) (stdout, stderr string) {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.Command(env.binary, append([]string{"report", path, "-v"}, more...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &talk
	require.NoError(t, cmd.Run(), talk.String())
	return out.String(), talk.String()
}

// torchTotals is what PyTorch's counters said at some time.
type torchTotals struct {
	counters
	MaxAllocated uint64 `json:"max_allocated"`
}

func readMoments(t *testing.T, p *target) []torchTotals {
	t.Helper()
	var out []torchTotals
	eachLine(t, filepath.Join(p.dir, "counters"), func(b []byte) {
		var m torchTotals
		require.NoError(t, json.Unmarshal(b, &m), "%s", b)
		out = append(out, m)
	})
	return out
}

// replayed is a recording, followed event by event.
type replayed struct {
	live, reserved []uint64 // at each moment; event.Unknown: the recording ended before
	end            *heap.Heap
	reader         *recording.Reader
	err            error // io.EOF, or how the recording ended
}

// replayTrace replays a recording and notes what was live at the moments.
func replayTrace(t *testing.T, path string, moments []torchTotals) *replayed {
	t.Helper()
	reader, err := recording.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { reader.Close() })
	r := &replayed{end: heap.New(), reader: reader}
	totals := func() {
		a := r.end.Totals().Accounts
		if len(a) == 0 {
			r.live, r.reserved = append(r.live, event.Unknown), append(r.reserved, event.Unknown)
			return
		}
		require.Len(t, a, 1)
		r.live, r.reserved = append(r.live, a[0].Allocated), append(r.reserved, a[0].Reserved)
	}
	for r.err == nil {
		var events []event.Event
		events, r.err = reader.Read(make([]event.Event, 0, 1000))
		for i := range events {
			for len(r.live) < len(moments) && moments[len(r.live)].Boottime < events[i].Time {
				totals()
			}
			r.end.Apply(&events[i])
		}
		for _, m := range reader.Annotations() {
			require.NoError(t, r.end.Annotate(&m))
		}
	}
	if errors.Is(r.err, io.EOF) {
		for len(r.live) < len(moments) {
			totals()
		}
	}
	return r
}

// TestReport: a recording tells what its session printed, byte for byte, and at each step what PyTorch's counters said.
func TestReport(t *testing.T) {
	for _, tt := range []struct {
		script string
		args   []string
		late   bool
	}{
		{"mlp.py", []string{"--steps", "60"}, false},
		{"mlp.py", []string{"--steps", "60"}, true},
		{"gpt.py", []string{"--steps", "8"}, false},
	} {
		name := tt.script
		if tt.late {
			name += " late"
		}
		t.Run(name, func(t *testing.T) {
			p := startTraining(t, tt.script, append(tt.args, "--counters", "DIR/counters")...).ready(t)
			if tt.late {
				p.release(t)
				p.freeze(t, 20)
			}
			c := startCommand(t, p)
			if tt.late {
				p.thaw(t)
			} else {
				p.release(t)
			}
			p.done(t)
			c.interrupt(t)

			trace := filepath.Join(c.out(), "trace.gputrace")
			printed, rest, _ := strings.Cut(c.stdout.String(), "  wrote ")
			require.Contains(t, rest, c.out())
			got, _ := report(t, trace)
			require.Equal(t, printed, got)

			moments := readMoments(t, p)
			r := replayTrace(t, trace, moments)
			require.ErrorIs(t, r.err, io.EOF)
			for i, m := range moments {
				if m.Boottime < r.reader.Info().Attached {
					require.True(t, tt.late, "step %d", m.Step)
					continue
				}
				require.Equal(t, m.Allocated, r.live[i], "step %d", m.Step)
				require.Equal(t, m.Reserved, r.reserved[i], "step %d", m.Step)
			}
			if !tt.late {
				require.Equal(t, moments[len(moments)-1].MaxAllocated, r.end.Totals().Accounts[0].Peak)
			}
			require.EqualValues(t, p.pid, r.reader.Info().PID)
			require.Equal(t, recording.ReasonStopped, r.reader.End().Reason)
		})
	}
}

// TestReportAfterKill: when gputrace is killed in the middle, its recording stays, and tells everything up to its last frame.
func TestReportAfterKill(t *testing.T) {
	p := startTraining(t, "mlp.py", "--steps", "0", "--counters", "DIR/counters").ready(t)
	c := startCommand(t, p)
	p.release(t)
	trace := filepath.Join(c.out(), "trace.gputrace")
	eventually(t, "frames of some steps", func() bool {
		r, err := recording.Open(trace)
		if err != nil {
			return false
		}
		defer r.Close()
		h := heap.New()
		_ = h.Replay(r) // it is still written
		return p.steps() > 30 && h.Totals().Time > readMoments(t, p)[20].Boottime
	})
	c.signal(t, syscall.SIGKILL)
	<-c.exited
	p.awaitSteps(t, p.steps()+5)
	p.signal(t, syscall.SIGSTOP)

	moments := readMoments(t, p)
	r := replayTrace(t, trace, moments)
	var damage *recording.DamageError
	require.ErrorAs(t, r.err, &damage)
	require.Greater(t, len(r.live), 20, "steps that were recorded")
	require.Less(t, len(r.live), len(moments))
	for i := range r.live {
		require.Equal(t, moments[i].Allocated, r.live[i], "step %d", moments[i].Step)
		require.Equal(t, moments[i].Reserved, r.reserved[i], "step %d", moments[i].Step)
	}
	totals := r.end.Totals()
	require.Zero(t, totals.GapCount)
	a := totals.Accounts[0]
	require.Equal(t, moments[len(r.live)-1].MaxAllocated, a.Peak, "the same in every step")

	out, talk := report(t, trace)
	require.Contains(t, talk, "the recording has no end record", "what is missing")
	account := exportJSON(t, trace).Accounts[0]
	require.Equal(t, []uint64{a.Peak, a.Allocated}, []uint64{account.Peak, account.Allocated})
	require.Contains(t, out, "mlp.py:", "the names are in the file")
}
