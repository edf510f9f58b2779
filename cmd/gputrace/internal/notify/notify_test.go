// SPDX-License-Identifier: Apache-2.0

package notify_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cmd/gputrace/internal/notify"
)

// TestDelivers: each message gets to the file, the command and the webhook, in order.
func TestDelivers(t *testing.T) {
	var log bytes.Buffer
	var posted []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		posted = append(posted, r.Header.Get("Content-Type")+" "+string(b))
	}))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "out")
	n := notify.New(notify.Options{Log: &log, Command: `(cat; echo " $GPUTRACE_ALERT") >> ` + out, Webhook: server.URL})
	require.NoError(t, n.Send([]byte(`{"a":1}`), "one"))
	require.NoError(t, n.Send([]byte(`{"a":2}`), "two"))
	require.NoError(t, n.Close())
	require.Equal(t, "{\"a\":1}\n{\"a\":2}\n", log.String())
	require.Equal(t, []string{`application/json {"a":1}`, `application/json {"a":2}`}, posted)
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "{\"a\":1} one\n{\"a\":2} two\n", string(b))
}

// TestFailures: what goes wrong is returned, by the next call.
func TestFailures(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer server.Close()
	n := notify.New(notify.Options{Command: "exit 3", Webhook: server.URL})
	require.NoError(t, n.Send(nil, ""))
	err := n.Close()
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "418")
}

// TestHanging: a command that hangs and a webhook that does not answer hold nobody up, and end.
func TestHanging(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	n := notify.New(notify.Options{Command: "sleep 1000", Webhook: server.URL, Timeout: 100 * time.Millisecond})
	began := time.Now()
	lost := false
	for range 40 {
		if err := n.Send([]byte("{}"), ""); err != nil {
			require.ErrorContains(t, err, "not delivered")
			lost = true
		}
	}
	require.Less(t, time.Since(began), time.Second)
	require.True(t, lost, "the queue is bounded")
	err := n.Close()
	require.ErrorContains(t, err, "takes longer than")
	require.Less(t, time.Since(began), 20*time.Second)
}

// TestHostileWebhook: one that redirects, never answers, or answers a byte at a time is an error, in bounded time, and Send never waits.
func TestHostileWebhook(t *testing.T) {
	released := make(chan struct{})
	reached := make(chan struct{}, 1)
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "redirects"},
		"never answers": {func(http.ResponseWriter, *http.Request) { <-released }, "it takes longer than"},
		"trickles": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("x")) // until the reader has ended
				w.(http.Flusher).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}, "it takes longer than"},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("/hook", tt.answer)
		mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { reached <- struct{}{} })
		server := httptest.NewServer(mux)
		n := notify.New(notify.Options{Webhook: server.URL + "/hook", Timeout: 2 * time.Second})
		require.NoError(t, n.Send([]byte("{}"), "text"), name)
		err := n.Close()
		require.Error(t, err, name)
		require.Contains(t, err.Error(), tt.want, name)
		if name == "never answers" {
			close(released)
		}
		server.Close()
	}
	require.Empty(t, reached, "a redirection is not followed")
}
