// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
)

// refuse makes a request of a process fail, at a line of its own.
func (s *madeSource) refuse(t *madeTarget, bytes uint64, line int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event.Event{
		Time: s.Now(), PID: uint32(t.pid), TID: uint32(t.pid), Kind: event.KindOutOfMemory, Layer: event.LayerAllocator,
		Device: event.Device{Type: event.DeviceCUDA}, Size: bytes, Requested: bytes, Stack: event.StackID(line),
		Allocated: event.Unknown, Reserved: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
	})
}

// receiver is a webhook that refuses the first request.
type receiver struct {
	*httptest.Server
	bodies  chan []byte
	headers chan http.Header
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{bodies: make(chan []byte, 100), headers: make(chan http.Header, 100)}
	first := true
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		if first {
			first = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b, err := io.ReadAll(in.Body)
		if err != nil {
			t.Error(err)
		}
		r.bodies <- b
		r.headers <- in.Header
	}))
	t.Cleanup(r.Close)
	return r
}

// TestFailures: a failed request is served with the process as it was then, stays after the process has ended, and reaches the webhook
// although that refuses the first attempt.
func TestFailures(t *testing.T) {
	hook := newReceiver(t)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	r := start(t, "webhooks: [{name: w, url: '"+hook.URL+"', token_file: "+token+"}]\n")
	s := <-r.sources
	one := &madeTarget{pid: 1 << 30, file: "/app/train.py"}
	one.about = process.About{Name: "python", Environ: []string{"SLURM_JOB_ID=77"}}
	s.arrive(one, 3)
	r.until("/metrics", "gputrace_agent_targets 1\n")
	s.refuse(one, 1<<30, 12)
	const text = "a request for 1.0 GiB at train.py:12 train failed with 1.5 KiB in use, 512 B of it from train.py:1 train"
	r.until("/api/v1/failures", text)
	got := r.failures("?job_id=77")
	require.Len(t, got, 1)
	require.EqualValues(t, 1<<30, got[0].Requested)
	require.Equal(t, "cuda:0", got[0].Device)
	require.EqualValues(t, 1536, got[0].Now)
	require.Len(t, got[0].Lines, 3)
	require.Nil(t, got[0].Continued, "it has not allocated since")
	require.Empty(t, r.failures("?job_id=78"))
	r.until("/", text)
	var m struct {
		Event, Text string
		Failure     servedFailure
	}
	require.NoError(t, json.Unmarshal(<-hook.bodies, &m))
	require.Equal(t, []string{failedRequest, text}, []string{m.Event, m.Text})
	require.EqualValues(t, 1536, m.Failure.Now)
	require.Equal(t, "Bearer secret", (<-hook.headers).Get("Authorization"))
	r.until("/metrics", `gputrace_agent_webhook_messages_total{outcome="sent",webhook="w"} 1`)
	s.mu.Lock()
	s.allocate(one, 4)
	s.mu.Unlock()
	r.until("/api/v1/failures", `"continued": true`)
	s.end(one)
	require.Eventually(t, func() bool { return r.failures("")[0].Ended != nil }, 10*time.Second, time.Millisecond)
	require.True(t, *r.failures("")[0].Continued)
	require.Nil(t, r.Agent.failures.last[0].process, "what is kept must not keep the process")
}

// servedFailure is a failure as a client reads it.
type servedFailure struct {
	Device    string
	Requested uint64 `json:"requested_bytes"`
	Now       uint64 `json:"in_use_bytes"`
	Lines     []line
	Continued *bool
	Ended     *time.Time
}

func (r *running) failures(query string) []servedFailure {
	r.t.Helper()
	_, body := r.get("/api/v1/failures" + query)
	var out struct{ Failures []servedFailure }
	require.NoError(r.t, json.Unmarshal([]byte(body), &out))
	return out.Failures
}

// TestFailuresAreBounded: one process cannot push out the failed requests of the others, and there is a limit for all.
func TestFailuresAreBounded(t *testing.T) {
	var l failures
	other, noisy := &recorder.Process{}, &recorder.Process{}
	l.add(&failure{Line: "other", process: other})
	for i := range 2 * maxFailures {
		l.add(&failure{Line: strconv.Itoa(i), process: noisy})
	}
	require.Len(t, l.last, 1+maxPerProcess)
	require.Equal(t, "other", l.last[0].Line)
	require.Equal(t, strconv.Itoa(2*maxFailures-1), l.last[maxPerProcess].Line, "the newest are kept")
	for range 2 * maxFailures {
		l.add(&failure{process: &recorder.Process{}})
	}
	require.Len(t, l.last, maxFailures)
	l.forget()
	require.Nil(t, l.last[0].process)
}

// TestMessages: each format has what its receiver requires, whatever a program is called.
func TestMessages(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	labels := map[string]string{"namespace": "ml", "pod": "train-0", "node": "n1"}
	m := &message{failedRequest, "a request failed", &failure{PID: 7, Program: "<!channel> & co", Labels: labels, Failed: at}, nil}
	text := func(format string) string {
		b, err := m.body(format, "key")
		require.NoError(t, err)
		return string(b)
	}
	require.JSONEq(t, `{"text": "*OUT OF MEMORY* ml/train-0 (&lt;!channel&gt; &amp; co, pid 7 on n1): a request failed"}`, text(slackFormat))
	require.JSONEq(t, `[{"labels": {"alertname": "GPUOutOfMemory", "namespace": "ml", "pod": "train-0", "node": "n1", "pid": "7"},
		"startsAt": "2026-01-02T03:04:05Z", "annotations": {"summary": "OUT OF MEMORY ml/train-0 (<!channel> & co, pid 7 on n1)",
		"description": "a request failed"}}]`, text(alertmanagerFormat))
	var duty struct {
		Key     string `json:"routing_key"`
		Dedup   string `json:"dedup_key"`
		Payload struct{ Summary, Source, Severity string }
	}
	require.NoError(t, json.Unmarshal([]byte(text(pagerDutyFormat)), &duty))
	require.Equal(t, []string{"key", "gputrace/out_of_memory/n1/7", "n1", "error"},
		[]string{duty.Key, duty.Dedup, duty.Payload.Source, duty.Payload.Severity})
	ofJob := &targetFile{PID: 8, Program: "p", Labels: map[string]string{"job_id": "5"}, summary: &summary{Time: at}}
	m = &message{startsToGrow, "grows", nil, ofJob}
	require.JSONEq(t, `{"text": "*GROWING* job 5 (p, pid 8): grows"}`, text(slackFormat))
	require.NotContains(t, labels, "alertname", "the labels of the process are its own")
}

// TestWebhookQueue: a webhook gets the events that it wants, and when too many messages wait, further ones are dropped and counted.
func TestWebhookQueue(t *testing.T) {
	all, err := newHooks([]WebhookConfig{{Name: "w", URL: "http://127.0.0.1:1/secret", On: []string{failedRequest}}}, quiet())
	require.NoError(t, err)
	for range maxMessages + 2 {
		all.send(&message{Event: failedRequest, Failure: &failure{}})
		all.send(&message{Event: startsToGrow})
	}
	n := all[0].Counts()
	require.Equal(t, maxMessages, n.Waiting)
	require.EqualValues(t, 2, n.Dropped, "a message that is not wanted is not dropped")
	for status, again := range map[int]bool{
		http.StatusFound: false, http.StatusForbidden: false, http.StatusTooManyRequests: true, http.StatusRequestTimeout: true,
		http.StatusInternalServerError: true, http.StatusBadGateway: true,
	} {
		require.Equal(t, again, hookRetries(status), status)
	}
}

// TestWebhookConfig: what cannot be used is refused before the agent starts.
func TestWebhookConfig(t *testing.T) {
	for text, want := range map[string]string{
		"{url: 'http://a'}": "name is missing",
		"{name: a}":         "set either url or url_file",
		"{name: a, url: 'http://a', url_file: b}":       "set either url or url_file",
		"{name: a, url: 'http://a', format: teams}":     `"teams" must be one of json, slack`,
		"{name: a, url: 'http://a', format: pagerduty}": "token_file is missing",
		"{name: a, url: 'http://a', on: [oom]}":         `"oom" must be one of out_of_memory, growing`,
	} {
		_, err := ParseConfig([]byte("webhooks: [" + text + "]"))
		require.ErrorContains(t, err, want)
	}
	for text, want := range map[string]string{
		"{name: a, url: 'ftp://key'}":                          "webhook a: the address is not an http or https URL",
		"{name: a, url_file: /nonexistent}":                    "webhook a: open /nonexistent",
		"{name: a, url: 'http://a', token_file: /nonexistent}": "webhook a: open /nonexistent",
	} {
		c, err := ParseConfig([]byte("webhooks: [" + text + "]"))
		require.NoError(t, err)
		_, err = New(c, "test", nil, quiet())
		require.ErrorContains(t, err, want)
	}
}

// TestAllocations: a profile of some seconds has what was allocated in them, and without a time everything since the attach.
func TestAllocations(t *testing.T) {
	r := start(t, "")
	s := <-r.sources
	one := &madeTarget{pid: 1 << 30, file: "/app/train.py"}
	s.arrive(one, 3)
	r.until("/metrics", "gputrace_agent_targets 1\n")
	r.until("/api/v1/targets", `"in_use_bytes": 1536`)
	allocated := func(query string) (objects, bytes int64, p *profile.Profile) {
		code, body := r.get("/debug/pprof/gpu_allocs" + query)
		require.Equal(t, http.StatusOK, code, body)
		p, err := profile.ParseData([]byte(body))
		require.NoError(t, err)
		for _, sample := range p.Sample {
			objects, bytes = objects+sample.Value[0], bytes+sample.Value[1]
		}
		return objects, bytes, p
	}
	objects, bytes, _ := allocated("")
	require.Equal(t, []int64{3, 1536}, []int64{objects, bytes})
	time.AfterFunc(300*time.Millisecond, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.allocate(one, 2)
	})
	objects, bytes, p := allocated("?seconds=1")
	require.Equal(t, []int64{2, 1024}, []int64{objects, bytes})
	require.Equal(t, "alloc_space", p.DefaultSampleType)
	require.GreaterOrEqual(t, p.DurationNanos, int64(time.Second))
}
