// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/gputrace/gputrace/export/pprof"
)

// Limits of the server: a client that is slow, or many of them, must not keep the agent from its work.
const (
	headerTimeout = 10 * time.Second
	writeTimeout  = 2 * time.Minute
	shutdownTime  = 3 * time.Second
	maxProfiles   = 2 // at a time
)

// listen opens the address, and returns the function that serves it until its context is done.
func (a *Agent) listen() (func(context.Context) error, error) {
	if err := web.Validate(a.config.WebConfigFile); err != nil {
		return nil, fmt.Errorf("web_config_file: %w", err)
	}
	if err := a.config.checkWeb(); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", a.config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	a.log.Info("serving", "address", l.Addr().String())
	server := &http.Server{
		Handler: a.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: 1 << 16,
	}
	return func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() {
			end, cancel := context.WithTimeout(context.Background(), shutdownTime)
			defer cancel()
			_ = server.Shutdown(end) // what is still being sent is cut off
			_ = server.Close()
		})
		defer stop()
		systemd := false
		f := &web.FlagConfig{WebListenAddresses: &[]string{a.config.Listen}, WebSystemdSocket: &systemd, WebConfigFile: &a.config.WebConfigFile}
		if err := web.Serve(l, server, f, a.log); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	}, nil
}

// Handler returns the handler of everything that the agent serves.
func (a *Agent) Handler() http.Handler {
	m := http.NewServeMux()
	for path, serve := range a.routes() {
		m.HandleFunc("GET "+path, serve)
	}
	return a.authorize(m)
}

// routes are the paths that are served. What shows a process asks shows or grantOf whether it may.
func (a *Agent) routes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"/metrics":                a.serveMetrics,
		"/debug/pprof/gpu_heap":   a.profile(false),
		"/debug/pprof/gpu_peak":   a.profile(true),
		"/debug/pprof/gpu_allocs": a.allocations,
		"/api/v1/targets":         a.serveTargets,
		"/api/v1/failures":        a.serveFailures,
		"/sd":                     a.serveDiscovery,
		"/api/v1/recordings":      a.serveRecordings,
		recordingPath:             a.serveRecording,
		recordingPagePath:         a.serveRecordingPage,
		"/target":                 a.servePage,
		"/{$}":                    a.serveIndex,
		"/-/healthy":              func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") },
		"/-/ready":                a.serveReady,
	}
}

func (a *Agent) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	recorder, err := a.current()
	if err == nil {
		_, err = recorder.State(ctx)
	}
	if err != nil {
		http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// notFilters are parameters of requests that do not choose targets. go tool pprof adds seconds.
var notFilters = []string{"seconds", "format"}

// filtered reports whether a request is for some of the targets.
func filtered(r *http.Request) bool {
	for name := range r.URL.Query() {
		if !slices.Contains(notFilters, name) {
			return true
		}
	}
	return false
}

// matches reports whether a process has all labels that a request asks for. The parameter pod may also be namespace/name.
func matches(labels map[string]string, pid int, query url.Values) bool {
	for name, values := range query {
		if slices.Contains(notFilters, name) {
			continue
		}
		is := labels[name]
		if !slices.ContainsFunc(values, func(v string) bool {
			return v == is || name == "pod" && v == labels["namespace"]+"/"+is || name == "pid" && v == strconv.Itoa(pid)
		}) {
			return false
		}
	}
	return true
}

func (t *target) matches(query url.Values) bool {
	return matches(t.process.Labels(), t.process.PID(), query)
}

// shows returns whether a request asks for a target and may see it.
func (a *Agent) shows(r *http.Request) func(*target) bool {
	g, query := a.grantOf(r), r.URL.Query()
	return func(t *target) bool { return g.sees(t.namespace()) && t.matches(query) }
}

// chosen returns the targets that a request asks for and may see.
func (a *Agent) chosen(r *http.Request) []*target {
	shows := a.shows(r)
	return slices.DeleteFunc(a.all(), func(t *target) bool { return !shows(t) })
}

// profile serves the live memory of the chosen targets in the format of pprof.
func (a *Agent) profile(peak bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		if err := a.writeProfile(r.Context(), &b, a.chosen(r), pprof.InUse, peak); err != nil {
			sendError(w, err)
			return
		}
		a.sendProfile(w, &b)
	}
}

// mostSeconds is the longest time for which a profile may watch allocations, within writeTimeout.
const mostSeconds = 100

// allocations serves what the chosen targets allocated since the attach or, with the parameter seconds, from now on for that time.
func (a *Agent) allocations(w http.ResponseWriter, r *http.Request) {
	var seconds int
	if text := r.URL.Query().Get("seconds"); text != "" {
		var err error
		if seconds, err = strconv.Atoi(text); err != nil || seconds < 1 || seconds > mostSeconds {
			http.Error(w, fmt.Sprintf("seconds: %q is no number from 1 to %d", text, mostSeconds), http.StatusBadRequest)
			return
		}
	}
	var before, after bytes.Buffer
	began, those := time.Now(), a.chosen(r)
	err := a.writeProfile(r.Context(), &before, those, pprof.Alloc, false)
	if err == nil && seconds > 0 {
		err = a.watch(r.Context(), &before, &after, those, time.Duration(seconds)*time.Second, began)
		before = after
	}
	if err != nil {
		sendError(w, err)
		return
	}
	a.sendProfile(w, &before)
}

// watch waits, and writes what happened since a profile.
func (a *Agent) watch(
	ctx context.Context, before, out *bytes.Buffer, those []*target, d time.Duration, began time.Time,
) error {
	base, err := profile.ParseData(before.Bytes())
	if err != nil {
		return fmt.Errorf("read the first profile: %w", err)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return ctx.Err()
	}
	var b bytes.Buffer
	if err := a.writeProfile(ctx, &b, those, pprof.Alloc, false); err != nil {
		return err
	}
	now, err := profile.ParseData(b.Bytes())
	if err != nil {
		return fmt.Errorf("read the second profile: %w", err)
	}
	return pprof.WriteDelta(out, base, now, time.Since(began))
}

// errNoTarget is the answer to a request for a profile of no process.
var errNoTarget = errors.New("no traced process has these labels; see /api/v1/targets")

// sendError answers with an error.
func sendError(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if errors.Is(err, errNoTarget) {
		status = http.StatusNotFound
	}
	http.Error(w, err.Error(), status)
}

// writeProfile writes a profile of some targets. It waits for one of the slots.
func (a *Agent) writeProfile(ctx context.Context, w io.Writer, those []*target, kind pprof.Kind, peak bool) error {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	all, err := a.moments(ctx, those)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errNoTarget
	}
	var parts []pprof.Part
	for i, v := range views(all, peak) {
		p := all[i].Process
		parts = append(parts, pprof.Part{View: v, Rank: p.Rank().Label(), Labels: p.Labels()})
	}
	in := pprof.Input{
		View: parts[0].View, Rank: parts[0].Rank, Labels: parts[0].Labels, More: parts[1:], Kind: kind, Time: all[0].Time,
		Comments: []string{"gputrace " + a.version + " agent"},
	}
	if peak && len(parts) > 1 {
		in.Comments = append(in.Comments, "each process at its own peak: their sum was never in use at one moment")
	}
	return pprof.Write(w, in)
}

// sendProfile answers with a profile.
func (a *Agent) sendProfile(w http.ResponseWriter, b *bytes.Buffer) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="gpu.pb.gz"`)
	a.counts.profiles.Add(1)
	if _, err := b.WriteTo(w); err != nil {
		a.log.Warn("a profile was not sent", "error", err)
	}
}

// targetFile is a target in JSON.
type targetFile struct {
	PID      int               `json:"pid"`
	Program  string            `json:"program"`
	Labels   map[string]string `json:"labels"`
	Attached time.Time         `json:"attached"`
	*summary
}

func (a *Agent) serveTargets(w http.ResponseWriter, r *http.Request) {
	out := struct {
		Version string       `json:"version"`
		Targets []targetFile `json:"targets"`
	}{a.version, []targetFile{}}
	for _, t := range a.chosen(r) {
		out.Targets = append(out.Targets, t.file())
	}
	writeJSON(w, out)
}

// group is a group of targets of Prometheus's HTTP service discovery.
type group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// serveDiscovery names each target as the agent's own address with a parameter that chooses it.
func (a *Agent) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	out := []group{}
	address := a.config.Advertise
	if address == "" {
		address = r.Host
	}
	for _, t := range a.chosen(r) {
		pid := strconv.Itoa(t.process.PID())
		g := group{[]string{address}, map[string]string{
			"__param_pid": pid, "__profile_path__": "/debug/pprof/gpu_heap", "__meta_gputrace_pid": pid,
		}}
		for name, value := range t.process.Labels() {
			g.Labels[name] = value
		}
		out = append(out, g)
	}
	writeJSON(w, out)
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.Copy(w, strings.NewReader(string(b)+"\n")) // a client that has left needs no answer
}
