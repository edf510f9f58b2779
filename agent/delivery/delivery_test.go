// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sending is a sender of a test, and its log.
type sending struct {
	*Sender
	t   *testing.T
	mu  sync.Mutex
	log bytes.Buffer
}

// Write implements io.Writer for the log.
func (s *sending) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

func (s *sending) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// sendTo returns a sender to a server, with the options that change changes.
func sendTo(t *testing.T, to Destination, change func(*Options)) *sending {
	t.Helper()
	s := &sending{t: t}
	o := Options{
		Kind: "push", Name: "p", Destination: to, Retry: func(status int) bool { return status == http.StatusTooManyRequests || status/100 == 5 },
		MaxTries: 3, Pause: time.Millisecond, MaxPause: 50 * time.Millisecond, MaxMessages: 4, MaxBytes: 100, Timeout: 10 * time.Second,
		Log: slog.New(slog.NewTextHandler(s, nil)),
	}
	if change != nil {
		change(&o)
	}
	var err error
	s.Sender, err = New(&o)
	require.NoError(t, err)
	return s
}

// run runs the sender to the end of the test.
func (s *sending) run() {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// until waits until the counters are as they should be.
func (s *sending) until(want func(n Counts) bool) Counts {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return want(s.Counts()) }, 20*time.Second, time.Millisecond, "%+v", s.Counts())
	return s.Counts()
}

// answers is a server that answers with one status after the other, and with the last one from then on.
type answers struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	header   http.Header
	requests []*http.Request
	bodies   []string
	times    []time.Time
}

func answer(t *testing.T, statuses ...int) *answers {
	a := &answers{statuses: statuses, header: http.Header{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// ServeHTTP implements http.Handler.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests, a.bodies, a.times = append(a.requests, r), append(a.bodies, string(body)), append(a.times, time.Now())
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.statuses[0])
	if len(a.statuses) > 1 {
		a.statuses = a.statuses[1:]
	}
}

// TestRefused: a server that refuses for good is asked once, one that is busy MaxTries times, and a redirect leads nowhere.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ status, tries int }{
		{http.StatusForbidden, 1}, {http.StatusBadRequest, 1}, {http.StatusTemporaryRedirect, 1}, {http.StatusBadGateway, 3},
		{http.StatusTooManyRequests, 3},
	} {
		other := answer(t, http.StatusOK)
		server := answer(t, c.status)
		server.header.Set("Location", other.URL)
		s := sendTo(t, Destination{URL: server.URL}, nil)
		s.run()
		s.Add([]byte("a"))
		n := s.until(func(n Counts) bool { return n.Failed == 1 })
		require.Equal(t, Counts{Failed: 1, Retries: uint64(c.tries - 1)}, n)
		require.Len(t, server.bodies, c.tries)
		require.Empty(t, other.bodies)
	}
}

// TestDeliversLater: a message that is refused at first is delivered later, whole, before the ones after it.
func TestDeliversLater(t *testing.T) {
	server := answer(t, http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusNoContent)
	s := sendTo(t, Destination{URL: server.URL}, nil)
	s.Add([]byte("first"))
	s.Add([]byte("second"))
	require.Equal(t, 11, s.Counts().WaitingBytes)
	s.run()
	n := s.until(func(n Counts) bool { return n.Sent == 2 })
	require.Equal(t, Counts{Sent: 2, Retries: 2, SentBytes: 11}, n)
	require.Equal(t, []string{"first", "first", "first", "second"}, server.bodies)
	require.Contains(t, s.logged(), "not delivered yet")
	require.Contains(t, s.logged(), "delivered again")
}

// TestRetryAfter: a server names the pause, which MaxPause bounds.
func TestRetryAfter(t *testing.T) {
	server := answer(t, http.StatusTooManyRequests, http.StatusOK)
	server.header.Set("Retry-After", "1")
	s := sendTo(t, Destination{URL: server.URL}, func(o *Options) { o.MaxPause = time.Minute })
	s.run()
	s.Add([]byte("a"))
	s.until(func(n Counts) bool { return n.Sent == 1 })
	require.GreaterOrEqual(t, server.times[1].Sub(server.times[0]), time.Second)

	server = answer(t, http.StatusTooManyRequests, http.StatusOK)
	server.header.Set("Retry-After", "86400")
	s = sendTo(t, Destination{URL: server.URL}, nil)
	s.run()
	s.Add([]byte("a"))
	s.until(func(n Counts) bool { return n.Sent == 1 })
	require.Less(t, server.times[1].Sub(server.times[0]), 10*time.Second)

	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999999999999999": 0, "4294967295": 24 * time.Hour,
		"Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		require.Equal(t, want, retryAfter(text, now), text)
	}
}

// TestHangs: a server that never answers, or never ends its answer, costs the time of an attempt and no more, and the queue stays bounded.
func TestHangs(t *testing.T) {
	for _, begins := range []bool{false, true} {
		asked := make(chan struct{}, 100)
		end := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if begins {
				w.WriteHeader(http.StatusTooManyRequests)
				w.(http.Flusher).Flush()
			}
			asked <- struct{}{}
			select {
			case <-r.Context().Done():
			case <-end:
			}
		}))
		s := sendTo(t, Destination{URL: server.URL}, func(o *Options) { o.Timeout, o.Newest = 200*time.Millisecond, true })
		s.run()
		s.Add([]byte("0"))
		<-asked // it is no longer in the queue
		for _, m := range []string{"1", "2", "3", "4", "5", "6"} {
			s.Add([]byte(m))
		}
		require.EqualValues(t, 2, s.Counts().Dropped)
		n := s.until(func(n Counts) bool { return n.Failed == 5 })
		require.Equal(t, Counts{Failed: 5, Dropped: 2, Retries: 10}, n)
		close(end)
		server.Close()
	}
}

// bound returns a socket with a port of its own at which nothing listens yet: connections are refused, and no other program gets the port.
func bound(t *testing.T) (fd int, address string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// closing closes the first connections at once.
type closing struct {
	net.Listener
	left atomic.Int64
}

// Accept implements net.Listener.
func (l *closing) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.left.Add(-1) < 0 {
			return c, err
		}
		_ = c.Close()
	}
}

// TestGoesAway: a message for a server that is not there, or that closes connections, is delivered once the server answers.
func TestGoesAway(t *testing.T) {
	fd, address := bound(t)
	s := sendTo(t, Destination{URL: "http://" + address + "/secret-path"}, func(o *Options) { o.MaxTries = 10_000 })
	s.run()
	s.Add([]byte("early"))
	before := s.until(func(n Counts) bool { return n.Retries > 2 }).Retries
	require.Contains(t, s.logged(), "connection refused")

	require.NoError(t, syscall.Listen(fd, 16))
	file := os.NewFile(uintptr(fd), "listener")
	l, err := net.FileListener(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	back := &answers{statuses: []int{http.StatusOK}, header: http.Header{}}
	away := &closing{Listener: l}
	away.left.Store(4)
	back.Server = &httptest.Server{Listener: away, Config: &http.Server{Handler: back, ReadHeaderTimeout: time.Second}}
	back.Start()
	t.Cleanup(back.Close)
	n := s.until(func(n Counts) bool { return n.Sent == 1 })
	require.GreaterOrEqual(t, n.Retries, before+4)
	back.CloseClientConnections()
	s.Add([]byte("late"))
	s.until(func(n Counts) bool { return n.Sent == 2 })
	require.Equal(t, []string{"early", "late"}, back.bodies)
	for _, secret := range []string{address, "127.0.0.1", "secret-path"} {
		require.NotContains(t, s.logged(), secret)
	}
}

// TestQueue: messages and bytes are bounded; a full queue drops the new message, or the oldest ones.
func TestQueue(t *testing.T) {
	server := answer(t, http.StatusOK)
	for _, newest := range []bool{false, true} {
		server.bodies = nil
		s := sendTo(t, Destination{URL: server.URL}, func(o *Options) { o.Newest = newest })
		for _, m := range []string{"1", "2", "3", "4", "5"} {
			s.Add([]byte(m))
		}
		s.Add(make([]byte, 101))
		want := []string{"1", "2", "3", "4"}
		dropped := uint64(2)
		if newest {
			want, dropped = nil, 6 // what is too large for the queue displaces all, and is dropped itself
		}
		require.Equal(t, dropped, s.Counts().Dropped)
		s.run()
		s.until(func(n Counts) bool { return int(n.Sent) == len(want) && n.Waiting == 0 })
		require.Equal(t, want, server.bodies)
	}
	s := sendTo(t, Destination{URL: server.URL}, func(o *Options) { o.Newest = true })
	s.Add([]byte(strings.Repeat("a", 60)))
	s.Add([]byte(strings.Repeat("b", 60)))
	require.Equal(t, Counts{Dropped: 1, Waiting: 1, WaitingBytes: 60}, s.Counts())
}

// TestEnds: a sender ends at once, also during a pause.
func TestEnds(t *testing.T) {
	server := answer(t, http.StatusBadGateway)
	s := sendTo(t, Destination{URL: server.URL}, func(o *Options) { o.Pause, o.MaxPause = time.Hour, time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	s.Add([]byte("a"))
	require.Eventually(t, func() bool { return strings.Contains(s.logged(), "not delivered yet") }, 10*time.Second, time.Millisecond)
	cancel()
	<-done
	require.EqualValues(t, 1, s.Counts().Failed)
}

// TestCredentials: each kind of credentials is sent, a file that is replaced is read again, and what the server refused is counted.
func TestCredentials(t *testing.T) {
	server := answer(t, http.StatusOK)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	token := file("token", "old\n")
	to := Destination{URLFile: file("url", server.URL+"/base/\n"), TokenFile: token, Headers: map[string]string{"x-scope-orgid": "team"}}
	s := sendTo(t, to,
		func(o *Options) {
			o.Path, o.Header = "v1/metrics", http.Header{"Content-Type": {"a/b"}}
			o.Rejected = func([]byte) uint64 { return 3 }
		})
	s.run()
	s.Add([]byte("a"))
	s.until(func(n Counts) bool { return n.Sent == 1 })
	r := server.requests[0]
	require.Equal(t, []string{"/base/v1/metrics", "Bearer old", "team", "a/b"},
		[]string{r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-Scope-OrgID"), r.Header.Get("Content-Type")})
	file("token", "new")
	s.Add([]byte("b"))
	s.until(func(n Counts) bool { return n.Sent == 2 })
	require.Equal(t, "Bearer new", server.requests[1].Header.Get("Authorization"))
	require.EqualValues(t, 6, s.Counts().Rejected)
	require.NoError(t, os.Remove(token))
	s.Add([]byte("c"))
	s.until(func(n Counts) bool { return n.Failed == 1 })
	require.Len(t, server.requests, 2, "nothing is sent without its credentials")

	s = sendTo(t, Destination{URL: server.URL, Username: "u", PasswordFile: file("password", "p\n")}, nil)
	s.run()
	s.Add([]byte("d"))
	s.until(func(n Counts) bool { return n.Sent == 1 })
	user, password, _ := server.requests[2].BasicAuth()
	require.Equal(t, []string{"u", "p"}, []string{user, password})
}

// TestTLS: a server whose certificate nobody vouches for gets nothing, and the log has the reason without the address.
func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(server.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	port := strings.TrimPrefix(server.URL, "https://127.0.0.1")
	plain := answer(t, http.StatusOK)
	for _, c := range []struct {
		to   Destination
		want string
	}{
		{Destination{URL: server.URL, CAFile: authority}, ""},
		{Destination{URL: server.URL}, "unknown authority"},
		{Destination{URL: "https://localhost" + port, CAFile: authority}, "for another host"},
		{Destination{URL: strings.Replace(plain.URL, "http:", "https:", 1)}, "does not speak TLS"},
		{Destination{URL: "http://name.invalid"}, "name of the host was not found"},
	} {
		s := sendTo(t, c.to, func(o *Options) { o.MaxTries = 1 })
		s.run()
		s.Add([]byte("a"))
		s.until(func(n Counts) bool { return n.Sent+n.Failed == 1 })
		require.Equal(t, c.want == "", s.Counts().Sent == 1, s.logged())
		require.Contains(t, s.logged(), c.want)
		for _, secret := range []string{"127.0.0.1", "localhost", "name.invalid", strings.Trim(port, ":")} {
			require.NotContains(t, s.logged(), secret)
		}
	}
}

// TestDestinations: what cannot be used is refused, and no error has the address.
func TestDestinations(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		want string
		to   Destination
	}{
		{"set either url or url_file", Destination{}},
		{"set either url or url_file", Destination{URL: "http://secret", URLFile: "f"}},
		{"the address is not an http or https URL", Destination{URL: "ftp://secret"}},
		{"the address is not an http or https URL", Destination{URL: "http://secret\x7f"}},
		{"the address is not an http or https URL", Destination{URLFile: empty}},
		{"open /nonexistent: no such file or directory", Destination{URL: "http://secret", TokenFile: "/nonexistent"}},
		{"open /nonexistent: no such file or directory", Destination{URL: "http://secret", CAFile: "/nonexistent"}},
		{"open /nonexistent: no such file or directory", Destination{URL: "http://secret", Username: "u", PasswordFile: "/nonexistent"}},
		{"set username and password_file together", Destination{URL: "http://secret", Username: "u"}},
		{"set either token_file or username, not both", Destination{URL: "http://secret", Username: "u", PasswordFile: "p", TokenFile: "t"}},
		{"ca_file: there is no certificate in it", Destination{URL: "http://secret", CAFile: empty}},
		{`headers: "a b" cannot be a header`, Destination{URL: "http://secret", Headers: map[string]string{"a b": ""}}},
		{`headers: "a" cannot be a header`, Destination{URL: "http://secret", Headers: map[string]string{"a": "secret\nb: c"}}},
	} {
		_, err := New(&Options{Kind: "push", Name: "p", Destination: c.to})
		require.EqualError(t, err, "push p: "+c.want)
	}
}
