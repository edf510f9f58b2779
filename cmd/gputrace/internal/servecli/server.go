// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
)

// Limits of the server. Reading a recording has none.
const (
	headerTimeout = 10 * time.Second
	writeTimeout  = 2 * time.Minute // from the first byte of an answer
	shutdownTime  = time.Second
	rowsOfPage    = 50
)

// policyOfFiles is the Content-Security-Policy of all files of a recording. Scripts run, but without an origin: a page that somebody else
// put into a folder cannot request anything from this server.
const policyOfFiles = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// server answers requests about the recordings of a shelf.
type server struct {
	shelf  *shelf
	reader *reader
	what   string // the folders, for people
	hosts  hosts
}

// hosts are the names under which the server can be asked. A page from elsewhere whose name was made to lead here has another.
type hosts struct {
	names     []string
	addresses bool // any IP address, because DNS rebinding needs a name; otherwise loopback addresses only
}

// allow reports whether a request for a host is for this server.
func (h *hosts) allow(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
	if ip, err := netip.ParseAddr(host); err == nil {
		return h.addresses || ip.Unmap().IsLoopback()
	}
	return host == "localhost" || slices.Contains(h.names, host)
}

// handler returns what answers all requests.
func (s *server) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /{$}", s.serveList)
	m.HandleFunc("GET /r/{path...}", s.serveRecording)
	m.HandleFunc("GET /api/v1/recordings", s.serveRecordings)
	m.HandleFunc("GET /api/v1/recordings/{path...}", s.serveAnswer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
			"Cache-Control": "no-cache", "Content-Security-Policy": "frame-ancestors 'none'",
		} {
			w.Header().Set(name, value)
		}
		if !s.hosts.allow(r.Host) {
			http.Error(w, words.Line(r.Host)+" is not a name of this server: open the address that gputrace serve printed", http.StatusForbidden)
			return
		}
		m.ServeHTTP(w, r)
	})
}

// serve answers the connections of a listener until ctx is done.
func (s *server) serve(ctx context.Context, l net.Listener, webConfig string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, MaxHeaderBytes: 1 << 16,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		_ = server.Shutdown(end) // what is still being sent is cut off
		_ = server.Close()
	})
	go s.reader.run(ctx)
	systemd, address := false, []string{l.Addr().String()}
	f := &web.FlagConfig{WebListenAddresses: &address, WebSystemdSocket: &systemd, WebConfigFile: &webConfig}
	err := web.Serve(l, server, f, slog.New(slog.DiscardHandler))
	if !stop() {
		<-stopped
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// send sends an answer. Its time begins now: reading the recording may have taken long.
func send(w http.ResponseWriter, media string, body []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has one
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that has left needs no answer
}

// refuse sends an error of a recording.
func refuse(w http.ResponseWriter, f *found, err error) {
	code := http.StatusUnprocessableEntity
	switch {
	case errors.Is(err, errTooMany):
		code = http.StatusServiceUnavailable
	case errors.Is(err, errNoFile):
		code = http.StatusNotFound
	case errors.Is(err, context.Canceled):
		code = http.StatusServiceUnavailable
	}
	http.Error(w, words.Line(f.reason(err)), code)
}

// serveRecording serves the page of a recording, at /r/NAME/, and its files, at /r/NAME/FILE.
func (s *server) serveRecording(w http.ResponseWriter, r *http.Request) {
	at, seen := r.PathValue("path"), s.shelf.look()
	if f := seen.names[at]; f != nil { // links of its page are relative
		http.Redirect(w, r, addressOf(f, ""), http.StatusMovedPermanently)
		return
	}
	name, file := path.Dir(at), path.Base(at)
	if strings.HasSuffix(at, "/") {
		name, file = strings.TrimSuffix(at, "/"), fileKinds[0].name
	}
	f := seen.names[name]
	i := slices.IndexFunc(fileKinds, func(k fileKind) bool { return k.name == file })
	if f == nil || i < 0 {
		http.Error(w, "no such recording or file: / lists them", http.StatusNotFound)
		return
	}
	k := &fileKinds[i]
	body, err := s.reader.file(r.Context(), f, k)
	switch {
	case errors.Is(err, errNoFile) && i == 0:
		s.writeList(w, r, f.name, append([]*found{f}, f.parts...), nil, "/")
		return
	case err != nil:
		refuse(w, f, err)
		return
	}
	w.Header().Set("Content-Security-Policy", policyOfFiles)
	send(w, k.media, body)
}

// addressOf returns the address of a file of a recording; of its page, if file is empty.
func addressOf(f *found, file string) string {
	return (&url.URL{Path: "/r/" + f.name + "/" + file}).EscapedPath()
}

// answerOf returns the address of the first screen of a recording as JSON.
func answerOf(f *found) string {
	return (&url.URL{Path: "/api/v1/recordings/" + f.name + "/answer"}).EscapedPath()
}

// serveAnswer serves the first screen of a recording as JSON.
func (s *server) serveAnswer(w http.ResponseWriter, r *http.Request) {
	name, found := strings.CutSuffix(r.PathValue("path"), "/answer")
	f := s.shelf.look().names[name]
	if f == nil || !found {
		http.Error(w, "no such recording: /api/v1/recordings lists them", http.StatusNotFound)
		return
	}
	c, err := s.reader.answer(r.Context(), f)
	if err == nil {
		err = c.err
	}
	if err != nil {
		refuse(w, f, err)
		return
	}
	send(w, "application/json", c.body)
}

// serveRecordings serves the list as JSON, with the verdicts that are known.
func (s *server) serveRecordings(w http.ResponseWriter, _ *http.Request) {
	seen := s.shelf.look()
	var all []json.Recording
	for _, f := range seen.list {
		all = append(all, s.recordingOf(f))
		for _, p := range f.parts {
			all = append(all, s.recordingOf(p))
		}
	}
	var b bytes.Buffer
	if err := json.WriteRecordings(&b, all, seen.notes, s.reader.version); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, "application/json", b.Bytes())
}

// recordingOf returns what the list in JSON has of a recording.
func (s *server) recordingOf(f *found) json.Recording {
	out := json.Recording{Name: words.Valid(f.name), Processes: len(f.parts), Bytes: f.size, State: "unknown"}
	if program := programOf(f); program != "" {
		out.Program = &program
	}
	if f.info != nil {
		out.Started = &f.info.Started
		if len(f.parts) == 0 {
			out.PID = &f.info.PID
		}
	}
	c, _ := s.reader.last(f)
	err := f.err
	if c != nil && c.err != nil {
		if c, err = nil, c.err; f.busy { // nothing is recorded yet
			err = nil
		}
	}
	if err != nil {
		why := words.Line(f.reason(err))
		out.Error, out.State = &why, "unreadable"
		return out
	}
	page, answer := addressOf(f, ""), answerOf(f)
	out.Page, out.Answer = &page, &answer
	if c != nil {
		out.Seconds, out.Sentences = &c.seconds, c.sentences
	}
	out.State = strings.ReplaceAll(stateOf(f, c), " ", "_")
	return out
}

// The states of a recording.
const (
	stateComplete  = "complete"
	stateRecording = "recording"
	stateCut       = "cut off"
	stateUnknown   = "unknown"
)

// nothingYet is what a list has of a recording that has just begun.
const nothingYet = "no events recorded yet"

// justWritten is the age of a file without an end that is taken to be written still: a file system may have no locks.
const justWritten = 10 * time.Second

// stateOf returns the state of a recording that can be read.
func stateOf(f *found, c *conclusion) string {
	switch {
	case f.busy || c != nil && c.cut && time.Since(f.changed) < justWritten:
		return stateRecording
	case c == nil:
		return stateUnknown
	case c.cut:
		return stateCut
	}
	return stateComplete
}

// programOf returns the program of a recording, and which process of a job it was; empty: not known.
func programOf(f *found) string {
	if f.info == nil {
		return ""
	}
	program := words.ScriptLine(f.info.Cmdline, f.info.Name)
	if len(f.parts) > 0 || f.info.PID == 0 {
		return program
	}
	return program + ", " + f.info.Rank.Process(int(f.info.PID))
}

func (s *server) serveList(w http.ResponseWriter, r *http.Request) {
	seen := s.shelf.look()
	s.reader.forget(seen)
	notes := slices.Clone(seen.notes)
	if len(seen.list) == 0 {
		notes = append(notes, "No recording is here yet. "+makeOne(s.shelf.places))
	}
	s.writeList(w, r, fmt.Sprintf("%s of %s", countText(seen.count), s.what), seen.list, notes, "")
}

// writeList writes a page of a list, and has the verdicts read that it does not have.
func (s *server) writeList(w http.ResponseWriter, r *http.Request, title string, all []*found, notes []string, up string) {
	last := max(0, (len(all)-1)/rowsOfPage)
	n, _ := strconv.Atoi(r.URL.Query().Get("page")) // the first page, if it is not a number
	n = min(max(n-1, 0), last)
	in := &html.ListInput{Title: title, Notes: notes, Up: up}
	address := func(n int) string { return fmt.Sprintf("%s?page=%d", r.URL.EscapedPath(), n+1) }
	if n > 0 {
		in.Newer = address(n - 1)
	}
	if n < last {
		in.Older = address(n + 1)
	}
	var missing []*found
	for _, f := range all[n*rowsOfPage : min(len(all), (n+1)*rowsOfPage)] {
		row, current := s.rowOf(f)
		if !current {
			missing = append(missing, f)
		}
		in.Rows, in.Pending = append(in.Rows, row), in.Pending || row.Pending
	}
	s.reader.want(missing)
	var b bytes.Buffer
	if err := html.WriteList(&b, in); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, "text/html; charset=utf-8", b.Bytes())
}

// rowOf returns what the page has of a recording, and whether nothing must be read for it.
func (s *server) rowOf(f *found) (row html.ListRow, current bool) {
	row = html.ListRow{Name: f.name, Program: programOf(f), Processes: len(f.parts), Started: f.started(), Size: uint64(f.size)}
	if f.err != nil {
		row.Error = f.reason(f.err)
		return row, true
	}
	row.Link = addressOf(f, "")
	c, current := s.reader.last(f)
	if !current && !f.busy { // it is of another content
		c = nil
	}
	if state := stateOf(f, c); state == stateRecording || state == stateCut {
		row.State = state
	}
	if len(f.parts) == 0 {
		row.More = []html.ListLink{
			{Name: "profile", Link: addressOf(f, "profile.pb.gz")}, {Name: "peak", Link: addressOf(f, "peak.pb.gz")},
			{Name: "picture", Link: addressOf(f, "memory.svg")},
		}
	}
	if len(f.parts) > 0 && f.hasStored("inuse.pb.gz") {
		row.More = append(row.More, html.ListLink{Name: "profile", Link: addressOf(f, "profile.pb.gz")})
	}
	row.More = append(row.More, html.ListLink{Name: "JSON", Link: answerOf(f)})
	switch {
	case c == nil:
		row.Pending = true
		return row, false
	case c.err != nil && f.busy:
		row.Note, row.Link, row.More = nothingYet, "", nil
		return row, current
	case c.err != nil:
		row.Error, row.Link, row.More = f.reason(c.err), "", nil
		return row, current
	}
	row.Verdicts, row.Length = verdictsOf(c), lengthText(c.seconds)
	if row.State != stateRecording {
		row.Note = f.shorter(c.warning)
	}
	return row, current
}

// countText returns a number of recordings in words.
func countText(n int) string {
	if n == 1 {
		return "1 recording"
	}
	return fmt.Sprintf("%d recordings", n)
}

// makeOne returns what makes a recording in a place.
func makeOne(places []*place) string {
	return "To make one: sudo gputrace -p PID -o " + path.Join(places[0].given, "NAME")
}

// addressError explains why an address cannot be listened on.
func addressError(address string, err error) error {
	const remedy = "give another address with --listen; port 0 takes one that is free"
	return exit.Say(fmt.Sprintf("listen on %s: %s\n  %s", address, cause(err), remedy), err)
}

// cause returns what the system says.
func cause(err error) string {
	var at *net.OpError
	if errors.As(err, &at) {
		err = at.Err
	}
	return strings.TrimPrefix(err.Error(), "bind: ")
}
