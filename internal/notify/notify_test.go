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

	"github.com/gputrace/gputrace/internal/notify"
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
