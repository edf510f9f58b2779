// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	listed = `{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"uid":"u1","name":"train-0","namespace":"ml","labels":{"app":"gpt"}},
		"spec":{"nodeName":"n1"},"status":{"containerStatuses":[{"name":"main","containerID":"containerd://c1"}]}},
		{"metadata":{"uid":"u2","name":"static","namespace":"kube-system","annotations":{"kubernetes.io/config.mirror":"hash"}}}]}`
	added   = `{"type":"ADDED","object":{"metadata":{"uid":"u3","name":"new","namespace":"ml","resourceVersion":"6"}}}`
	deleted = `{"type":"DELETED","object":{"metadata":{"uid":"u1","resourceVersion":"7"}}}`
	gone    = `{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}`
)

// server is an API server that answers a list and then watches; each watch sends what comes from the channel.
func server(t *testing.T, changes chan string, status *atomic.Int32) (*Options, *atomic.Int32) {
	t.Helper()
	lists := &atomic.Int32{}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case status.Load() != 0:
			w.WriteHeader(int(status.Load()))
		case r.Header.Get("Authorization") != "Bearer secret" || q.Get("fieldSelector") != "spec.nodeName=n1":
			w.WriteHeader(http.StatusForbidden)
		case q.Get("watch") == "":
			lists.Add(1)
			fmt.Fprint(w, listed)
		default:
			w.(http.Flusher).Flush()
			for {
				select {
				case c := <-changes:
					if c == "" {
						return
					}
					fmt.Fprintln(w, c)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	o := &Options{Server: s.URL, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"), Node: "n1"}
	require.NoError(t, os.WriteFile(o.TokenFile, []byte("secret\n"), 0o600))
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	require.NoError(t, os.WriteFile(o.CAFile, authority, 0o600))
	return o, lists
}

// TestNames: the list, changes of a watch that ends and begins again, and a version that is too old.
func TestNames(t *testing.T) {
	changes, status := make(chan string), &atomic.Int32{}
	o, lists := server(t, changes, status)
	n, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		n.Run(ctx)
		close(done)
	}()
	until := func(ok func() bool) { require.Eventually(t, ok, 10*time.Second, time.Millisecond) }
	until(func() bool { return n.Pod("u1") != nil })
	p := n.Pod("u1")
	names := []string{p.Namespace, p.Name, p.Node, p.Labels["app"], p.Containers["c1"]}
	require.Equal(t, []string{"ml", "train-0", "n1", "gpt", "main"}, names)
	require.Equal(t, "static", n.Pod("hash").Name)
	require.Equal(t, n.Pod("u2"), n.Pod("hash"))
	changes <- added
	until(func() bool { return n.Pod("u3") != nil })
	changes <- "" // the server ends the watch
	changes <- deleted
	until(func() bool { return n.Pod("u1") == nil })
	require.EqualValues(t, 1, lists.Load(), "the watch continues without another list")
	changes <- gone
	until(func() bool { return lists.Load() == 2 })
	pods, synced := n.Synced()
	require.True(t, synced)
	require.Equal(t, 3, pods)
	cancel()
	<-done
}

// TestServerAway: while the server refuses, the error is reported and the names that are known stay.
func TestServerAway(t *testing.T) {
	changes, status := make(chan string), &atomic.Int32{}
	o, _ := server(t, changes, status)
	status.Store(http.StatusServiceUnavailable)
	warned := make(chan error, 100)
	o.Warn = func(err error) { warned <- err }
	n, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.Run(ctx)
	require.ErrorContains(t, <-warned, "503")
	require.Nil(t, n.Pod("u1"))
	status.Store(0)
	require.Eventually(t, func() bool { return n.Pod("u1") != nil }, 10*time.Second, time.Millisecond)
	status.Store(http.StatusServiceUnavailable)
	select {
	case changes <- "": // the watch that is open ends
		require.ErrorContains(t, <-warned, "503")
	case err := <-warned: // it was not open yet
		require.ErrorContains(t, err, "503")
	}
	require.NotNil(t, n.Pod("u1"))
}

// TestNoPod: where there is no server, the error says what to set.
func TestNoPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := New(&Options{})
	require.ErrorContains(t, err, "api_server")
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	_, err = New(&Options{})
	require.ErrorContains(t, err, "NODE_NAME")
	t.Setenv("NODE_NAME", "n2")
	n, err := New(&Options{})
	require.NoError(t, err)
	require.Equal(t, "https://[fd00::1]:443", n.options.Server)
	require.Equal(t, "n2", n.Node())
}
