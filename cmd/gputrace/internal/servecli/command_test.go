// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
)

// talk is a buffer that a server writes to while a test reads it.
type talk struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *talk) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *talk) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// started starts a server, and returns its first line, what it warned of, and the function that ends it as Ctrl-C does.
func started(t *testing.T, o *options) (line string, warned *talk, stop func() error) {
	t.Helper()
	out := &talk{}
	warned = &talk{}
	o.out, o.warn, o.version = out, warned, testVersion
	if o.open == nil {
		o.open = &export.OpenOptions{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, o) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "\n") || len(ended) > 0 }, time.Minute, time.Millisecond)
	return out.String(), warned, stop
}

var addressInLine = regexp.MustCompile(`https?://\S+`)

// TestServe: the printed line has the address, which answers until the server is ended; that is no error.
func TestServe(t *testing.T) {
	dir := runs(t)
	line, warned, stop := started(t, &options{folders: []string{dir}, listen: "127.0.0.1:0"})
	require.Regexp(t, `^Serving 7 recordings of `+regexp.QuoteMeta(dir)+` on http://127\.0\.0\.1:\d+\n$`, line)
	address := addressInLine.FindString(line)
	r, err := http.Get(address + "/api/v1/recordings")
	require.NoError(t, err)
	require.Contains(t, drain(t, r.Body), `"format": "gputrace recordings"`)
	r, err = http.Post(address, "text/plain", nil)
	require.NoError(t, err)
	drain(t, r.Body)
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)

	taken := strings.TrimPrefix(address, "http://")
	err = serve(t.Context(), &options{folders: []string{dir}, listen: taken, open: &export.OpenOptions{}})
	require.EqualError(t, err, "listen on "+taken+": address already in use\n"+
		"  give another address with --listen; port 0 takes one that is free")
	require.NoError(t, stop())
	require.Empty(t, warned.String())
	_, err = http.Get(address)
	require.Error(t, err)
}

// TestServeEmpty: a folder without recordings is served, with what makes one.
func TestServeEmpty(t *testing.T) {
	dir := t.TempDir()
	line, _, stop := started(t, &options{folders: []string{dir}, listen: "localhost:0"})
	require.Contains(t, line, "Serving 0 recordings of ")
	require.Contains(t, line, "none yet. To make one: sudo gputrace -p PID -o "+dir+"/NAME")
	require.NoError(t, stop())
}

// TestRefused: what cannot be served is refused at once, with what to do.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("text"), 0o644))
	for _, c := range []struct {
		o    options
		code int
		want string
	}{
		{options{folders: []string{dir + "/no"}}, exit.Error, "no such file or directory\n  give a folder with recordings"},
		{options{folders: []string{text}}, exit.Invalid, "not a recording"},
		{options{folders: []string{dir}, listen: "8080"}, exit.Misuse, "give an address such as 127.0.0.1:8080"},
		{options{folders: []string{dir}, listen: ":0"}, exit.Misuse, "others can reach it: give --web-config"},
		{options{folders: []string{dir}, listen: "gpu7.example:80"}, exit.Misuse, "others can reach it"},
		{options{folders: []string{dir}, listen: "127.0.0.1:0", webConfig: text}, exit.Misuse, "--web-config"},
		{options{folders: []string{dir}, listen: "127.0.0.1:99999"}, exit.Error, "give another address with --listen"},
	} {
		c.o.open = &export.OpenOptions{}
		err := serve(t.Context(), &c.o)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, c.code, exit.Code(err), c.want)
	}
}

// TestOthers: an address that others can reach is served with a warning, or with a password, and reads no Python files of this machine.
func TestOthers(t *testing.T) {
	dir := runs(t)
	o := &options{folders: []string{dir}, listen: "0.0.0.0:0", insecure: true}
	line, warned, stop := started(t, o)
	require.Contains(t, warned.String(), "warning: everyone who can reach 0.0.0.0:0 can read these recordings")
	require.True(t, o.open.Alone)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Contains(t, line, "http://"+host+":")
	require.NoError(t, stop())

	config := filepath.Join(t.TempDir(), "web.yml")
	// the hash is of "password", as in the examples of the exporter toolkit
	const users = "basic_auth_users:\n  anna: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG\n"
	require.NoError(t, os.WriteFile(config, []byte(users), 0o600))
	line, warned, stop = started(t, &options{folders: []string{dir}, listen: ":0", webConfig: config})
	require.Empty(t, warned.String())
	_, port, err := net.SplitHostPort(strings.TrimPrefix(addressInLine.FindString(line), "http://"))
	require.NoError(t, err)
	r, err := http.Get("http://127.0.0.1:" + port)
	require.NoError(t, err)
	drain(t, r.Body)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	require.NoError(t, stop())

	require.NoError(t, os.WriteFile(config, []byte("tls_server_config: {cert_file: c, key_file: k}"), 0o600))
	require.True(t, (&options{webConfig: config}).hasTLS())
	require.False(t, (&options{}).hasTLS())
}
