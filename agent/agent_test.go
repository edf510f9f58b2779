// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// madeTarget is a process that allocates what a test says.
type madeTarget struct {
	recorder.Target
	pid   int
	about process.About
	ended bool // changed in the goroutine of the recorder
	file  string
}

func (t *madeTarget) PID() int              { return t.pid }
func (t *madeTarget) About() *process.About { return &t.about }
func (t *madeTarget) Paused() string        { return "" }
func (t *madeTarget) Alive() bool           { return !t.ended }
func (t *madeTarget) Began() bool           { return false }
func (t *madeTarget) Lost() uint64          { return 0 }
func (t *madeTarget) OverLimit() uint64     { return 0 }
func (t *madeTarget) Cost() figures.Cost {
	return figures.Cost{Detail: figures.SixteenthDetail, LeftOut: 5, Programs: 2 * time.Second, Hits: 1e6}
}
func (t *madeTarget) Stacks() recorder.Stacks { return recorder.Stacks{} }
func (t *madeTarget) File(string) io.Reader   { return nil }
func (t *madeTarget) Close()                  {}
func (t *madeTarget) Found() *recorder.Found {
	return &recorder.Found{Python: "3.11.7", PyTorch: "2.15.0"}
}

func (t *madeTarget) End() recorder.End {
	if t.ended {
		return recorder.Exited
	}
	return recorder.Running
}

func (t *madeTarget) Stack(id event.StackID) *event.Stack {
	return &event.Stack{ID: id, Frames: []event.Frame{{Kind: event.FramePython, Func: "train", File: t.file, Line: int(id)}}}
}

func (t *madeTarget) Totals(context.Context) ([]recorder.Totals, error) {
	return nil, &recorder.Outcome{Kind: reconcile.ErrNoState, Text: "none"}
}

func (*madeTarget) Allocators() int { return 0 }

func (t *madeTarget) AllocatorState(context.Context) (*reconcile.State, error) {
	return nil, &recorder.Outcome{Kind: reconcile.ErrNoState, Text: "none"}
}

func (t *madeTarget) Holders(context.Context) (*recorder.Scan, error) {
	return nil, &recorder.Outcome{Kind: reconcile.ErrNoState, Text: "none"}
}

func (t *madeTarget) Driver() (string, []string) { return "580", nil }

func (t *madeTarget) Memory(context.Context) *recorder.Memory {
	return &recorder.Memory{Driver: []figures.DriverUse{{UUID: "GPU-1", Used: 5000, Total: 1 << 30, All: figures.Unknown}}}
}

// madeSource passes what a test gives it to the recorder.
type madeSource struct {
	recorder.Source
	mu      sync.Mutex
	arrived []recorder.Target
	events  []event.Event
	ends    []*madeTarget
	stopped bool
	fails   error
}

func (s *madeSource) Start(context.Context) error { return nil }

func (s *madeSource) Read(buf []event.Event) ([]event.Event, error) {
	time.Sleep(time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.ends {
		t.ended = true
	}
	buf, s.events, s.ends = append(buf, s.events...), nil, nil
	if s.stopped {
		return buf, io.EOF
	}
	return buf, s.fails
}

func (s *madeSource) Arrived() []recorder.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.arrived
	s.arrived = nil
	return a
}

func (s *madeSource) Emptied() bool         { return true }
func (s *madeSource) Now() uint64           { return uint64(time.Now().UnixNano()) }
func (s *madeSource) Lost() uint64          { return 0 }
func (s *madeSource) Ended() bool           { return false }
func (s *madeSource) Finish()               {}
func (s *madeSource) Signal(os.Signal) bool { return false }
func (s *madeSource) Wait() (int, bool)     { return 0, false }
func (s *madeSource) Close() error          { return nil }
func (s *madeSource) Hits() ([]figures.Hits, error) {
	return []figures.Hits{{Hits: 3, Emitted: 2}}, nil
}

func (s *madeSource) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

// arrive adds a process that has allocated a number of blocks of 512 bytes, each at a line of its own.
func (s *madeSource) arrive(t *madeTarget, blocks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived = append(s.arrived, t)
	s.allocate(t, blocks)
}

// allocate adds the allocations of blocks. The caller holds the lock.
func (s *madeSource) allocate(t *madeTarget, blocks int) {
	for i := range uint64(blocks) {
		s.events = append(s.events, event.Event{
			Time: s.Now(), PID: uint32(t.pid), TID: uint32(t.pid), Kind: event.KindAlloc, Layer: event.LayerAllocator,
			Device: event.Device{Type: event.DeviceCUDA}, Addr: 0x1000 * (i + 1), Size: 512, Requested: 512,
			Stack: event.StackID(i + 1), Allocated: 512 * (i + 1), Reserved: 1 << 20,
			Handle: event.Unknown, Context: event.Unknown,
		})
	}
}

func (s *madeSource) end(t *madeTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, t)
}

func (s *madeSource) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// running is an agent of a test with its server.
type running struct {
	*Agent
	t       *testing.T
	url     string
	sources chan *madeSource
}

func start(t *testing.T, config string) *running {
	t.Helper()
	c, err := ParseConfig([]byte("listen: 127.0.0.1:0\ninterval: 1s\n" + config))
	require.NoError(t, err)
	r := &running{t: t, sources: make(chan *madeSource, 10)}
	open := func(*recorder.Options) (recorder.Source, error) {
		s := &madeSource{}
		r.sources <- s
		return s, nil
	}
	r.Agent, err = New(c, "test", open, quiet())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	s := httptest.NewServer(r.Handler())
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	response, err := http.Get(r.url + path)
	require.NoError(r.t, err)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	require.NoError(r.t, err)
	return response.StatusCode, string(b)
}

// until waits until an answer has a text.
func (r *running) until(path, text string) string {
	r.t.Helper()
	var body string
	require.Eventually(r.t, func() bool {
		_, body = r.get(path)
		return strings.Contains(body, text)
	}, 10*time.Second, 5*time.Millisecond, "%s has no %s", path, text)
	return body
}

const hostile = "a\"b\\c\n<script>"

// TestAgent: two processes, what is served of them, and that nothing is left of one that has ended.
func TestAgent(t *testing.T) {
	r := start(t, "top_lines: 3\nlabels: {cluster: c1}\n")
	s := <-r.sources
	one := &madeTarget{pid: 1 << 30, file: "/app/train.py"}
	one.about = process.About{Name: "python", Environ: []string{"RANK=1", "WORLD_SIZE=2", "SLURM_JOB_ID=77"}}
	two := &madeTarget{pid: 1<<30 + 1, file: hostile}
	two.about = process.About{Name: hostile, Cmdline: []string{hostile}, Environ: []string{"SLURM_JOB_ID=" + hostile}}
	s.arrive(one, 5)
	s.arrive(two, 2)
	pid := strconv.Itoa(one.pid)
	metrics := r.until("/metrics", `gputrace_line_live_bytes{cluster="c1",job_id="77",line="train.py:1 train"`)
	require.Regexp(t, `gputrace_live_bytes\{cluster="c1",device="cuda:0",job_id="77",[^}]*pid="`+pid+`",rank="1"\} 2560\n`, metrics)
	require.Regexp(t, `gputrace_line_live_bytes\{[^}]*line="\(other lines\)"[^}]*pid="`+pid+`"[^}]*\} 1024\n`, metrics, "two of five lines")
	require.Regexp(t, `gputrace_unexplained_bytes\{[^}]*gpu_uuid="GPU-1"`, metrics)
	require.Regexp(t, `gputrace_degraded\{[^}]*pid="`+pid+`"[^}]*\} 2\n`, metrics)
	require.Regexp(t, `gputrace_stacks_left_out_total\{[^}]*pid="`+pid+`"[^}]*\} 5\n`, metrics)
	require.Regexp(t, `gputrace_tracing_cpu_seconds_total\{[^}]*part="programs",pid="`+pid+`"[^}]*\} 2\n`, metrics)
	require.Regexp(t, `gputrace_tracing_cpu_seconds_total\{[^}]*part="trap",pid="`+pid+`"[^}]*\} 0.6\n`, metrics)
	require.Contains(t, metrics, "gputrace_agent_cpu_budget_ratio{of=\"node\"} 0.02\n")
	require.Contains(t, metrics, "gputrace_agent_targets 2\n")
	require.Contains(t, metrics, `gputrace_agent_probe_hits_total{outcome="emitted"} 2`)
	r.until("/api/v1/targets", `"verdict": "UNKNOWN"`)
	r.until("/api/v1/targets", `"stacks_left_out": 5,`)
	_, few := r.get("/metrics?job_id=77")
	require.NotContains(t, few, "gputrace_agent")
	require.NotContains(t, few, `pid="`+strconv.Itoa(two.pid))
	r.checkProfiles(pid)
	_, page := r.get("/target?pid=" + strconv.Itoa(two.pid))
	require.NotContains(t, page, "<script>")
	code, _ := r.get("/target?pid=1")
	require.Equal(t, http.StatusNotFound, code)
	_, index := r.get("/")
	require.Contains(t, index, "/target?pid="+pid)
	var groups []group
	_, found := r.get("/sd?rank=1")
	require.NoError(t, json.Unmarshal([]byte(found), &groups))
	require.Len(t, groups, 1)
	require.Equal(t, pid, groups[0].Labels["__param_pid"])
	require.Equal(t, strings.TrimPrefix(r.url, "http://"), groups[0].Targets[0])
	r.until("/-/ready", "ready")
	collected := make(chan struct{}, 1)
	r.whenCollected(two.pid, collected)
	s.end(two)
	require.Eventually(t, func() bool {
		_, metrics = r.get("/metrics")
		return strings.Contains(metrics, "gputrace_agent_targets 1\n")
	}, 10*time.Second, 5*time.Millisecond)
	require.NotContains(t, metrics, strconv.Itoa(two.pid), "a process that has ended has no series")
	require.Eventually(t, func() bool {
		runtime.GC()
		return len(collected) == 1
	}, 10*time.Second, 10*time.Millisecond, "a process that has ended is still in memory")
}

// whenCollected sends when a target is no longer in memory.
func (r *running) whenCollected(pid int, collected chan struct{}) {
	for _, t := range r.all() {
		if t.process.PID() == pid {
			runtime.AddCleanup(t, func(c chan struct{}) { c <- struct{}{} }, collected)
		}
	}
}

// checkProfiles opens the profiles with pprof's own package.
func (r *running) checkProfiles(pid string) {
	r.t.Helper()
	for path, want := range map[string]int64{"gpu_heap?pid=" + pid: 2560, "gpu_peak?job_id=77&seconds=1": 2560, "gpu_heap": 2560 + 1024} {
		_, body := r.get("/debug/pprof/" + path)
		p, err := profile.ParseData([]byte(body))
		require.NoError(r.t, err)
		var sum int64
		for _, s := range p.Sample {
			sum += s.Value[3]
			require.Equal(r.t, []string{"c1"}, s.Label["cluster"])
		}
		require.Equal(r.t, want, sum, path)
	}
	for query, want := range map[string]int{
		"pod=none": http.StatusNotFound, "seconds=0": http.StatusBadRequest, "seconds=1h": http.StatusBadRequest,
	} {
		code, _ := r.get("/debug/pprof/gpu_allocs?" + query)
		require.Equal(r.t, want, code, query)
	}
	code, _ := r.get("/debug/pprof/gpu_heap?pod=none")
	require.Equal(r.t, http.StatusNotFound, code)
}

// TestRestart: a recorder that fails is followed by another, and what it traced is forgotten.
func TestRestart(t *testing.T) {
	r := start(t, "")
	s := <-r.sources
	s.arrive(&madeTarget{pid: 1 << 30, file: "/app/train.py"}, 1)
	r.until("/metrics", "gputrace_agent_targets 1\n")
	s.fail(errors.New("broken"))
	next := <-r.sources
	metrics := r.until("/metrics", "gputrace_agent_recorder_restarts_total 1\n")
	require.Contains(t, metrics, "gputrace_agent_targets 0\n")
	next.arrive(&madeTarget{pid: 1 << 30, file: "/app/train.py"}, 2)
	require.Regexp(t, `gputrace_live_bytes\{[^}]*\} 1024\n`, r.until("/metrics", "gputrace_live_bytes{"))
}

// TestFirstFailure: an agent that cannot trace at all ends with the reason.
func TestFirstFailure(t *testing.T) {
	c, err := ParseConfig([]byte("listen: 127.0.0.1:0"))
	require.NoError(t, err)
	refused := errors.New("no rights")
	open := func(*recorder.Options) (recorder.Source, error) { return nil, refused }
	a, err := New(c, "test", open, quiet())
	require.NoError(t, err)
	require.ErrorIs(t, a.Run(t.Context()), refused)
}

// TestSelect: rules choose the processes, and max_targets bounds them.
func TestSelect(t *testing.T) {
	const rules = "relabel_configs: [{action: keep, source_labels: [__meta_process_executable_name], regex: agent.*}]"
	c, err := ParseConfig([]byte("max_targets: 1\n" + rules))
	require.NoError(t, err)
	a, err := New(c, "test", nil, quiet())
	require.NoError(t, err)
	self, err := process.Open(os.Getpid())
	require.NoError(t, err)
	require.True(t, a.selects(self), "the name of this program begins with agent")
	require.False(t, a.selects(self), "there is one already")
	require.EqualValues(t, 1, a.counts.refused.Load())
	a.pattern = regexp.MustCompile("^not this one$")
	a.pending = map[processKey]time.Time{}
	require.False(t, a.selects(self))
	a.pattern, a.dropped = nil, map[processKey]bool{}
	parent, err := process.Open(os.Getppid())
	require.NoError(t, err)
	a.pending = map[processKey]time.Time{}
	require.False(t, a.selects(parent), "go")
	require.Len(t, a.dropped, 1)
	a.pending = map[processKey]time.Time{{1, 1}: time.Now().Add(-time.Hour)}
	require.True(t, a.selects(self), "one that was never attached to does not count for long")
}
