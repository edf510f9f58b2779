// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recording"
)

// TestHosts: a name that was made to lead here is refused, at every address.
func TestHosts(t *testing.T) {
	for _, c := range []struct {
		listen string
		local  bool
		allow  string
		refuse string
	}{
		{
			"127.0.0.1", true, "127.0.0.1 127.0.0.1:80 localhost LOCALHOST:1 localhost. [::1]:8 [::1] 127.0.0.2 [::ffff:127.0.0.1]:3",
			"evil.example evil.example:80 10.0.0.1 localhost.evil.example 127.0.0.1.evil.example 0.0.0.0 [::]:80 a:b:c",
		},
		{"localhost", true, "localhost:80 127.0.0.1", "evil.example 10.0.0.1"},
		{"gpu7.example", false, "gpu7.example:80 GPU7.example localhost 10.0.0.1:80 [fe80::1]:80", "evil.example gpu7.example.evil.example"},
		{"0.0.0.0", false, "localhost 10.0.0.1:80", "evil.example"},
		{"", false, "localhost 10.0.0.1:80", "evil.example"},
	} {
		h := hostsOf(c.listen, c.local)
		for host := range strings.FieldsSeq(c.allow) {
			require.True(t, h.allow(host), "%s: %s", c.listen, host)
		}
		for host := range strings.FieldsSeq(c.refuse) {
			require.False(t, h.allow(host), "%s: %s", c.listen, host)
		}
		require.False(t, h.allow(""), c.listen)
	}
	s := newServer(t, t.TempDir())
	for _, address := range []string{"/", "/r/x/", "/api/v1/recordings", "/api/v1/recordings/x/answer", "/nothing"} {
		w := s.askAs("evil.example", address)
		require.Equal(t, http.StatusForbidden, w.Code, address)
		require.Contains(t, w.Body.String(), "evil.example")
	}
	require.NotContains(t, s.askAs("evil\u202e.example", "/").Body.String(), "\u202e")
}

// TestOutside: no name and no link leads out of the folder.
func TestOutside(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	record(t, filepath.Join(outside, "secret", export.TraceName), nil, false)
	record(t, filepath.Join(dir, "run", export.TraceName), nil, false)
	secret := filepath.Join(outside, "secret")
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "folder")))
	require.NoError(t, os.Symlink(filepath.Join(secret, export.TraceName), filepath.Join(dir, "file.gputrace")))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "inner"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(secret, export.TraceName), filepath.Join(dir, "inner", export.TraceName)))
	s := newServer(t, dir)
	require.Equal(t, []string{"run"}, namesOf(s.settled(t, "/")))
	for _, address := range []string{
		"/r/folder/", "/r/file.gputrace/", "/r/inner/", "/r/../secret/", "/r/%2e%2e/" + filepath.Base(outside) + "/secret/",
		"/r/run/../../secret/", "/r/run/..%2f..%2fsecret/report.html", "/r/" + secret + "/", "/r/%2f" + secret + "/", "/r/run%00/",
		"/api/v1/recordings/..%2fsecret/answer",
		"/r/run/trace.gputrace", "/r/run/%2e%2e/", "/r//etc/passwd", "/api/v1/recordings/run/../../../etc/passwd/answer",
	} {
		w := s.ask(address)
		require.NotEqual(t, http.StatusOK, w.Code, address)
		require.NotContains(t, w.Body.String(), "root:")
	}
}

// TestReplacedByLink: a folder that becomes a link after it was found is not followed.
func TestReplacedByLink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	record(t, filepath.Join(outside, export.TraceName), nil, false)
	record(t, filepath.Join(dir, "run", export.TraceName), nil, false)
	s := newServer(t, dir)
	s.shelf.look()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "run")))
	w := s.ask("/r/run/")
	require.NotEqual(t, http.StatusOK, w.Code)
	require.NotContains(t, w.Body.String(), "<html")
	require.NotContains(t, w.Body.String(), dir)
}

// hostileNames are what a program, or a folder, can be called.
var hostileNames = []string{
	"\x1b]0;owned\x07\x1b[2J", "two\nINJECTED lines", "</script><script>alert(1)</script>", `"><img src=x onerror=alert(1)>`,
	"a b%2f%00?x=1#y", "\xff\xfe\xc3(", "\u202etxt.exe\u2066", "javascript:alert(1)", "]]>&lt;<!--", "{{.}}", "..x", "profile.pb.gz", "answer",
}

// TestHostileNames: names of programs and folders are text, whatever is in them, and their links lead to the recording.
func TestHostileNames(t *testing.T) {
	dir := t.TempDir()
	var folders []string
	for i, name := range hostileNames {
		folder := strings.ReplaceAll(name, "/", "_")
		if utf8.ValidString(name) && !strings.HasPrefix(name, ".") { // hidden
			folders = append(folders, folder)
		}
		record(t, filepath.Join(dir, folder, export.TraceName), func(info *recording.Info) {
			info.Name, info.Cmdline = name, []string{"python", name, hostileNames[(i+1)%len(hostileNames)]}
		}, false)
	}
	s := newServer(t, dir)
	page := s.settled(t, "/")
	for _, bad := range []string{"<script>alert", "<img", "\x1b", "\u202e", "\x00", `href="javascript`, "\xff"} {
		require.NotContains(t, page, bad)
	}
	require.True(t, utf8.ValidString(page))
	require.Len(t, namesOf(page), len(folders))
	require.Contains(t, page, ": invalid", "a name that is no text is said to be left out")
	seen := s.shelf.look()
	for _, folder := range folders {
		f := seen.names[folder]
		require.NotNil(t, f, folder)
		require.Contains(t, html.UnescapeString(page), `<a href="`+addressOf(f, "")+`">`, folder)
		require.Contains(t, s.get(t, addressOf(f, "")), "</html>", folder)
		require.True(t, utf8.ValidString(s.get(t, "/api/v1/recordings")))
	}
}

// TestMany: a thousand recordings are listed in pages, and only the rows of the open page are read.
func TestMany(t *testing.T) {
	dir := t.TempDir()
	for i := range 1000 {
		copyFile(t, old, filepath.Join(dir, fmt.Sprintf("run%04d", i), export.TraceName))
	}
	places, err := newPlaces([]string{dir})
	require.NoError(t, err)
	s := &server{
		shelf: &shelf{places: places}, what: "runs", hosts: hostsOf("127.0.0.1", true),
		reader: newReader(func() *export.OpenOptions { return &export.OpenOptions{} }, testVersion),
	}
	begun := time.Now()
	page := s.get(t, "/?page=3")
	require.Less(t, time.Since(begun), 10*time.Second)
	require.Contains(t, page, "1000 recordings")
	require.Equal(t, "run0100", namesOf(page)[0])
	require.Len(t, namesOf(page), rowsOfPage)
	require.Contains(t, page, `<a href="/?page=2">newer</a> <a href="/?page=4">older</a>`)
	require.Len(t, s.reader.wanted, rowsOfPage)
	require.Empty(t, s.reader.known, "none is read before somebody reads it")
	require.Len(t, namesOf(s.get(t, "/?page=99999")), rowsOfPage)
	require.Len(t, namesOf(s.get(t, "/?page=x")), rowsOfPage)
	require.Len(t, s.reader.wanted, rowsOfPage, "the rows of the last page")
}

// TestOneAtATime: requests for the same recording make its page once, and those beyond a bound are refused.
func TestOneAtATime(t *testing.T) {
	dir := t.TempDir()
	record(t, filepath.Join(dir, "run", export.TraceName), nil, false)
	opened := 0
	places, err := newPlaces([]string{dir})
	require.NoError(t, err)
	s := &server{
		shelf: &shelf{places: places}, hosts: hostsOf("127.0.0.1", true),
		reader: newReader(func() *export.OpenOptions { opened++; return &export.OpenOptions{} }, testVersion),
	}
	s.reader.slot <- struct{}{}
	var all sync.WaitGroup
	codes := make(chan int, 3*maxWaiting)
	for range 3 * maxWaiting {
		all.Go(func() { codes <- s.ask("/r/run/").Code })
	}
	for range 2 * maxWaiting {
		require.Equal(t, http.StatusServiceUnavailable, <-codes)
	}
	<-s.reader.slot
	all.Wait()
	for range maxWaiting {
		require.Equal(t, http.StatusOK, <-codes)
	}
	require.Equal(t, 1, opened)
}

// TestInterrupted: a request goes before what nobody waits for, which is read afterwards.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	record(t, filepath.Join(dir, "run", export.TraceName), nil, false)
	s := newServer(t, dir)
	r := s.reader
	f := s.shelf.look().names["run"]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.conclude(ctx, f)
	require.ErrorIs(t, err, context.Canceled)
	_, known := r.last(f)
	require.False(t, known, "half a recording is no answer")

	release, err := r.acquire(t.Context(), "")
	require.NoError(t, err)
	interrupted := false
	r.mu.Lock()
	r.interrupt, r.ahead = func() { interrupted = true }, f.key()
	r.mu.Unlock()
	for _, useful := range []string{f.key(), ""} {
		waits, stop := context.WithTimeout(t.Context(), time.Millisecond)
		_, err = r.acquire(waits, useful)
		stop()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, useful == "", interrupted)
	}
	release()
	r.want([]*found{f})
	require.Eventually(t, func() bool { _, current := r.last(f); return current }, time.Minute, time.Millisecond)
}

// TestPanic: a recording that ends its reader is an error of that recording alone.
func TestPanic(t *testing.T) {
	dir := t.TempDir()
	record(t, filepath.Join(dir, "run", export.TraceName), nil, false)
	s := newServer(t, dir)
	_, err := s.reader.with(t.Context(), s.shelf.look().names["run"], func(*export.Source) error { panic("broken") })
	require.ErrorContains(t, err, "broken")
	require.Contains(t, s.get(t, "/r/run/"), "</html>")
}

// TestKept: files in memory have a bound; those that were used least recently are dropped.
func TestKept(t *testing.T) {
	f := files{most: 100}
	key := func(name string, size int64) fileKey { return fileKey{name, "report.html", stamp{size: size}} }
	f.add(key("a", 1), make([]byte, 40))
	f.add(key("b", 1), make([]byte, 40))
	require.NotNil(t, f.get(key("a", 1)))
	f.add(key("c", 1), make([]byte, 40))
	require.Nil(t, f.get(key("b", 1)))
	require.NotNil(t, f.get(key("a", 1)))
	f.add(key("a", 2), make([]byte, 10))
	require.Nil(t, f.get(key("a", 1)))
	require.Equal(t, 50, f.size)
	f.add(key("d", 1), make([]byte, 1000))
	require.Zero(t, f.size, "larger than all")
	require.Empty(t, f.list)
	_, err := limited{&bytes.Buffer{}}.Write(make([]byte, maxFile+1))
	require.ErrorIs(t, err, errTooLarge)
}
