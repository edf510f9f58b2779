// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

const testVersion = "1.2.3"

// old is a recording of an earlier version.
const old = "../../testdata/recording-1.6.gputrace"

// record writes a recording of a program that keeps a block each step. o changes how it begins; cut leaves out its end.
func record(t *testing.T, path string, o func(*recording.Info), cut bool) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	j := eventtest.NewJob()
	for range 60 {
		j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		j.Alloc(eventtest.Kept, 1<<20)
	}
	info := &recording.Info{
		Gputrace: "1.2.3", PID: eventtest.PID, Name: "python", Cmdline: []string{"python", "train.py"}, Started: time.Now().Truncate(time.Second),
	}
	if o != nil {
		o(info)
	}
	w, err := recording.Create(path, info, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	if cut {
		require.NoError(t, w.Flush())
		return
	}
	require.NoError(t, w.Close(&recording.End{Reason: recording.ReasonStopped, Duration: 3 * time.Second}))
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	require.NoError(t, os.WriteFile(to, b, 0o644))
}

// newServer returns a server of folders on loopback. What is wanted is read as long as the test runs.
func newServer(t *testing.T, folders ...string) *server {
	t.Helper()
	places, err := newPlaces(folders)
	require.NoError(t, err)
	s := &server{
		shelf: &shelf{places: places}, what: "runs", hosts: hostsOf("127.0.0.1", true),
		reader: newReader(func() *export.OpenOptions { return &export.OpenOptions{} }, testVersion),
	}
	go s.reader.run(t.Context())
	return s
}

// ask returns the answer to a request for an address.
func (s *server) ask(address string) *httptest.ResponseRecorder {
	return s.askAs("127.0.0.1:8080", address)
}

func (s *server) askAs(host, address string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, address, nil)
	r.Host = host
	s.handler().ServeHTTP(w, r)
	return w
}

// again lets the next request look at the folders.
func (s *server) again() {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	s.shelf.looked = time.Time{}
}

// get returns the body of an answer without an error.
func (s *server) get(t *testing.T, address string) string {
	t.Helper()
	w := s.ask(address)
	require.Equal(t, http.StatusOK, w.Code, "%s: %s", address, w.Body)
	return w.Body.String()
}

// listed returns the list as JSON, by name.
func (s *server) listed(t *testing.T) map[string]json.Recording {
	t.Helper()
	var in struct{ Recordings []json.Recording }
	require.NoError(t, stdjson.Unmarshal([]byte(s.get(t, "/api/v1/recordings")), &in))
	out := map[string]json.Recording{}
	for _, r := range in.Recordings {
		out[r.Name] = r
	}
	return out
}

// settled returns the page of the list when nothing is read any more.
func (s *server) settled(t *testing.T, address string) string {
	t.Helper()
	var page string
	require.Eventually(t, func() bool {
		page = s.get(t, address)
		return !strings.Contains(page, "data-pending")
	}, time.Minute, 10*time.Millisecond)
	return page
}

// brief is what report --brief --json prints, and the sentence in it.
func brief(t *testing.T, path string) (body, sentence string) {
	t.Helper()
	in, err := export.Open(path, nil)
	require.NoError(t, err)
	defer in.Close()
	var b bytes.Buffer
	require.NoError(t, in.WriteBrief(&b, true))
	var screen struct{ Sentence string }
	require.NoError(t, stdjson.Unmarshal(b.Bytes(), &screen))
	return b.String(), screen.Sentence
}

// exported is what export writes of a recording.
func exported(t *testing.T, path, format string, w export.Window) string {
	t.Helper()
	in, err := export.Open(path, nil)
	require.NoError(t, err)
	defer in.Close()
	formats, err := export.Find(format)
	require.NoError(t, err)
	input, err := in.Input(&w, testVersion, func(error) {})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, formats[0].Write(&b, input))
	return b.String()
}

// runs is a folder with each kind of recording.
func runs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := func(n int) func(*recording.Info) {
		return func(i *recording.Info) { i.Started = time.Date(2026, 11, 28, 10, n, 0, 0, time.UTC) }
	}
	record(t, filepath.Join(dir, "growing", export.TraceName), at(1), false)
	record(t, filepath.Join(dir, "deep/er", export.TraceName), at(2), false)
	for i := range 2 {
		record(t, filepath.Join(dir, "job", fmt.Sprintf("rank%d-pid%d", i, 70-i), export.TraceName), func(info *recording.Info) {
			at(3)(info)
			info.PID, info.Rank = uint32(70-i), &recording.Rank{Rank: i, World: 2}
		}, false)
	}
	record(t, filepath.Join(dir, "alone/pid5", export.TraceName), at(4), false)
	copyFile(t, old, filepath.Join(dir, "old.gputrace"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.gputrace"), []byte("hello"), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".hidden.tmp"), 0o755))
	copyFile(t, old, filepath.Join(dir, ".hidden.tmp", export.TraceName))
	return dir
}

var rowName = regexp.MustCompile(`<h2>(?:<a href="[^"]*">)?([^<]*)`)

func namesOf(page string) (out []string) {
	for _, m := range rowName.FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestList: the newest first, each with the verdict of its first screen, and an error where one cannot be read.
func TestList(t *testing.T) {
	dir := runs(t)
	s := newServer(t, dir)
	page := s.settled(t, "/")
	require.Equal(t, []string{"bad.gputrace", "alone", "job", "deep/er", "growing", "old.gputrace"}, namesOf(page))
	require.Contains(t, page, "<h1>7 recordings of runs</h1>")
	require.Contains(t, page, "not a recording")
	require.Contains(t, page, "2 processes")
	require.Contains(t, page, `class="sentence growing"><strong>GROWING</strong>`)
	_, sentence := brief(t, filepath.Join(dir, "growing"))
	all := s.listed(t)
	require.Len(t, all, 8)
	require.Equal(t, []string{sentence}, all["growing"].Sentences)
	require.Equal(t, "complete", all["growing"].State)
	require.InDelta(t, 3, *all["growing"].Seconds, 0.01)
	require.Equal(t, "train.py, pid 4242", *all["growing"].Program)
	require.Equal(t, "unreadable", all["bad.gputrace"].State)
	require.Equal(t, 2, all["job"].Processes)
	require.Equal(t, "train.py, rank 1, pid 69", *all["job/rank1-pid69"].Program)
	require.Equal(t, "unknown", all["job/rank1-pid69"].State, "nobody asked for its verdict")
	for name, r := range all {
		if r.Answer != nil {
			s.get(t, *r.Answer)
			s.get(t, *r.Page)
		}
		require.NotContains(t, fmt.Sprint(name, r.Error), dir)
	}
	require.Contains(t, s.settled(t, "/r/job/"), "rank1-pid69")
}

// TestAnswer: the JSON is what report --brief --json prints, for a job too.
func TestAnswer(t *testing.T) {
	dir := runs(t)
	s := newServer(t, dir)
	for name, path := range map[string]string{"growing": "growing", "old.gputrace": "old.gputrace", "alone": "alone"} {
		want, _ := brief(t, filepath.Join(dir, path))
		require.Equal(t, want, s.get(t, "/api/v1/recordings/"+name+"/answer"))
	}
	files, err := export.Recordings(filepath.Join(dir, "job"))
	require.NoError(t, err)
	var want bytes.Buffer
	require.NoError(t, export.WriteBriefOfJob(&want, files, nil, true))
	require.Equal(t, want.String(), s.get(t, "/api/v1/recordings/job/answer"))
	for address, code := range map[string]int{
		"/api/v1/recordings/bad.gputrace/answer": http.StatusUnprocessableEntity, "/api/v1/recordings/nothing/answer": http.StatusNotFound,
		"/api/v1/recordings/growing": http.StatusNotFound, "/r/nothing/": http.StatusNotFound, "/r/growing/trace.gputrace": http.StatusNotFound,
		"/r/bad.gputrace/": http.StatusUnprocessableEntity, "/r/growing": http.StatusMovedPermanently, "/r/": http.StatusNotFound,
		"/r/job/peak.pb.gz": http.StatusNotFound, "/x": http.StatusNotFound,
	} {
		require.Equal(t, code, s.ask(address).Code, address)
	}
	require.Equal(t, "/r/deep/er/", s.ask("/r/deep/er").Header().Get("Location"))
}

// TestFiles: every file is what export writes, byte for byte, and is made once.
func TestFiles(t *testing.T) {
	dir := runs(t)
	s := newServer(t, dir)
	path := filepath.Join(dir, "growing", export.TraceName)
	peak := export.Window{At: moment.Moment{Kind: moment.Peak}}
	for _, f := range []struct {
		name, format string
		window       export.Window
	}{
		{"", "html", export.Window{}}, {"report.html", "html", export.Window{}}, {"profile.pb.gz", "pprof", export.Window{}},
		{"peak.pb.gz", "pprof", peak}, {"alloc.pb.gz", "pprof-alloc", export.Window{}}, {"memory.svg", "svg", export.Window{}},
		{"memory.png", "png", export.Window{}}, {"memory.json", "json", export.Window{}},
	} {
		w := s.ask("/r/growing/" + f.name + "?seconds=5")
		require.Equal(t, http.StatusOK, w.Code, f.name)
		require.Equal(t, exported(t, path, f.format, f.window), w.Body.String(), f.name)
		require.Contains(t, w.Header().Get("Content-Security-Policy"), "sandbox allow-scripts; default-src 'none'")
		if strings.HasSuffix(f.name, ".pb.gz") {
			_, err := profile.ParseData(w.Body.Bytes())
			require.NoError(t, err)
		}
	}
	require.Len(t, s.reader.kept.list, 7, "the page has two names")
	c, current := s.reader.last(s.shelf.look().names["growing"])
	require.True(t, current)
	_, sentence := brief(t, path)
	require.Equal(t, []string{sentence}, c.sentences, "from the same replays")
	entries, err := os.ReadDir(filepath.Join(dir, "growing"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is written")
}

// TestStored: the page of a folder is served as it is, unless it is somewhere else, and so are the profiles of a job.
func TestStored(t *testing.T) {
	dir := runs(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "growing/report.html"), []byte("stored"), 0o644))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "deep/er/report.html")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job/report.html"), []byte("of the job"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job/inuse.pb.gz"), []byte("merged"), 0o644))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "job/peak.pb.gz")))
	s := newServer(t, dir)
	require.Equal(t, "stored", s.get(t, "/r/growing/"))
	require.Contains(t, s.get(t, "/r/deep/er/"), "gputrace</title>")
	require.Equal(t, "of the job", s.get(t, "/r/job/"))
	require.Equal(t, "merged", s.get(t, "/r/job/profile.pb.gz"))
	require.Equal(t, http.StatusNotFound, s.ask("/r/job/peak.pb.gz").Code)
	require.Contains(t, s.settled(t, "/"), `<a href="/r/job/profile.pb.gz">profile</a>`)
}

// TestFolders: several folders, a folder that is a recording, a job, and a file; names are unique.
func TestFolders(t *testing.T) {
	dir, other := runs(t), runs(t)
	base := filepath.Base(dir)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{filepath.Join(dir, "growing")}, []string{"growing"}}, {[]string{filepath.Join(dir, "job")}, []string{"job"}},
		{[]string{filepath.Join(dir, "alone")}, []string{"alone"}}, {[]string{filepath.Join(dir, "old.gputrace")}, []string{"old.gputrace"}},
		{[]string{filepath.Join(dir, "deep"), filepath.Join(other, "deep")}, []string{"deep/er", "deep.2/er"}},
		{[]string{filepath.Join(dir, "deep"), dir}, []string{"deep/er", base + "/growing", base + "/alone", base + "/deep/er"}},
	} {
		s := newServer(t, c.args...)
		seen := s.shelf.look()
		for _, name := range c.want {
			require.Contains(t, seen.names, name)
			s.get(t, "/r/"+name+"/")
		}
	}
}

// TestAppears: recordings that come, change and go are seen; what is kept of the old content is not shown.
func TestAppears(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, dir)
	require.Contains(t, s.get(t, "/"), "sudo gputrace -p PID -o "+dir+"/NAME")
	path := filepath.Join(dir, "run", export.TraceName)
	record(t, path, nil, false)
	s.again()
	require.Contains(t, s.settled(t, "/"), "GROWING")
	page := s.get(t, "/r/run/")
	require.NoError(t, os.Remove(path))
	copyFile(t, old, path)
	s.again()
	require.Contains(t, s.settled(t, "/"), "OUT OF MEMORY")
	require.NotEqual(t, page, s.get(t, "/r/run/"))
	require.Len(t, s.reader.kept.list, 1, "the old page is dropped")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
	s.again()
	require.NotContains(t, s.settled(t, "/"), "/r/run/")
	require.Equal(t, http.StatusNotFound, s.ask("/r/run/").Code)
	require.NoError(t, os.Remove(dir))
	s.again()
	require.Contains(t, s.get(t, "/"), "no such file or directory")
}

// TestWhileRecording: a recording that is being written is shown as far as it is, and is not read again for each event.
func TestWhileRecording(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run", export.TraceName)
	record(t, path, nil, true)
	lock, err := os.Open(filepath.Join(dir, "run"))
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	s := newServer(t, dir)
	page := s.settled(t, "/")
	require.Contains(t, page, `<span class="state">recording</span>`)
	require.Contains(t, page, "GROWING")
	require.NotContains(t, page, "no end record")
	require.Equal(t, "recording", s.listed(t)["run"].State)
	require.Contains(t, s.get(t, "/r/run/"), "</html>")
	c, _ := s.reader.last(s.shelf.look().names["run"])
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)))
	s.again()
	again, current := s.reader.last(s.shelf.look().names["run"])
	require.True(t, current && c == again)
	require.NoError(t, lock.Close())
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, past, past))
	s.again()
	require.Contains(t, s.settled(t, "/"), `<span class="state">cut off</span>`)
	require.Equal(t, "cut_off", s.listed(t)["run"].State)
}

// TestBegun: a recording without events is one that was just begun, as long as it is written.
func TestBegun(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "run"), 0o755))
	noStack := func(event.StackID) *event.Stack { return nil }
	_, err := recording.Create(filepath.Join(dir, "run", export.TraceName), &recording.Info{PID: 7, Name: "train"}, noStack, nil)
	require.NoError(t, err)
	lock, err := os.Open(filepath.Join(dir, "run"))
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	s := newServer(t, dir)
	require.Contains(t, s.settled(t, "/"), nothingYet)
	require.Equal(t, "recording", s.listed(t)["run"].State)
	require.NoError(t, lock.Close())
	s.again()
	require.Contains(t, s.settled(t, "/"), "the recording has no end record")
	require.Equal(t, "unreadable", s.listed(t)["run"].State)
}

// TestTruncated: wherever a recording ends, it is a row of the list, and no request for it ends the server.
func TestTruncated(t *testing.T) {
	whole, err := os.ReadFile(old)
	require.NoError(t, err)
	dir := t.TempDir()
	var names []string
	for n := 0; n < len(whole); n += len(whole)/12 + 1 {
		name := fmt.Sprintf("cut%05d.gputrace", n)
		names = append(names, name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), whole[:n], 0o644))
	}
	s := newServer(t, dir)
	page := s.settled(t, "/")
	require.ElementsMatch(t, names, namesOf(page))
	for _, name := range names {
		for _, file := range []string{"", "profile.pb.gz"} {
			w := s.ask("/r/" + name + "/" + file)
			require.Contains(t, []int{http.StatusOK, http.StatusUnprocessableEntity}, w.Code, name)
			require.NotEmpty(t, w.Body.Len())
		}
	}
	require.Contains(t, page, "bytes from there on are lost")
}

// drain reads a body to its end.
func drain(t *testing.T, r io.ReadCloser) string {
	t.Helper()
	defer r.Close()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}
