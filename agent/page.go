// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"

	"github.com/gputrace/gputrace/agent/ring"
	"github.com/gputrace/gputrace/export/table"
)

// pages are the agent's pages. Everything that a program chose passes through html/template.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"bytes":  func(n uint64) string { return table.Bytes(n) },
	"signed": signedBytes,
	"step":   func(f float64) string { return table.MeanBytes(f) },
	"labels": func(m map[string]string) []string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(m)) {
			out = append(out, fmt.Sprintf("%s=%q", name, m[name]))
		}
		return out
	},
}).Parse(`{{define "head"}}<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="15">
<title>gputrace agent</title><style>body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:70em}
td,th{padding:.2em 1em .2em 0;text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code{color:#555}b{white-space:nowrap}</style>{{end}}
{{define "index"}}{{template "head"}}<h1>GPU processes of {{.Node}}</h1>
{{if .Targets}}<table><tr><th>process<th>verdict<th class="n">live<th class="n">peak{{range .Targets}}
<tr><td><a href="/target?pid={{.PID}}">{{.PID}} {{.Program}}</a><br>{{range labels .Labels}}<code>{{.}}</code> {{end}}
{{with .Summary}}<td><b>{{.Verdict}}</b> {{.Sentence}}<td class="n">{{bytes .Now}}<td class="n">{{bytes .Peak}}
{{else}}<td>not judged yet<td><td>{{end}}{{end}}</table>{{else}}<p>No process that uses a GPU is traced.{{end}}
{{if .Failures}}<h2>Requests that failed</h2><table><tr><th>when<th>process<th>what failed<th>afterwards{{range .Failures}}
<tr><td>{{.Failed.Format "2006-01-02 15:04:05"}}<td>{{.PID}} {{.Program}}<br>{{range labels .Labels}}<code>{{.}}</code> {{end}}
<td>{{.Text}}<td>{{.Afterwards}}{{end}}</table>{{end}}
<p><a href="/metrics">metrics</a> · <a href="/api/v1/targets">targets as JSON</a> · <a href="/api/v1/failures">failures as JSON</a> · <a href="/sd">service discovery</a>
· <a href="/debug/pprof/gpu_heap">profile of all</a>{{end}}
{{define "target"}}{{template "head"}}<p><a href="/">all processes</a><h1>{{.PID}} {{.Program}}</h1>
<p>{{range labels .Labels}}<code>{{.}}</code> {{end}}{{with .Summary}}
<p><b>{{.Verdict}}</b> {{.Sentence}}{{range .Notes}}<br>{{.}}{{end}}
<p>{{bytes .Now}} live, {{bytes .Peak}} at the peak{{if .Findings}}<h2>Growing</h2>
<table><tr><th class="n">per step<th class="n">live<th>line<th>held by<th>advice{{range .Findings}}
<tr><td class="n">{{step .Bytes}}<td class="n">{{bytes .Live}}<td>{{.Line}}<td>{{.Holder}}<td>{{.Advice}}{{end}}</table>{{end}}
<h2>Largest lines</h2><table><tr><th class="n">live<th>line{{range .Lines}}<tr><td class="n">{{signed .Bytes}}<td>{{.Name}}{{end}}</table>
{{else}}<p>Not judged yet.{{end}}
{{with .Recording}}<p>All events: <a href="/recordings/{{.}}/latest/page">page of the last recording</a> ·
<a href="/recordings/{{.}}/latest/trace.gputrace">the recording</a> · <a href="/api/v1/recordings?pid={{$.PID}}">all recordings</a>{{end}}
<p>Profiles: <a href="/debug/pprof/gpu_heap?pid={{.PID}}">live memory</a> · <a href="/debug/pprof/gpu_peak?pid={{.PID}}">at the peak</a>,
for <code>go tool pprof</code>. For every event of a minute, on this machine:
<code>sudo gputrace -p {{.PID}} -d 60s -o result</code>{{end}}`))

func signedBytes(n int64) string {
	if n < 0 {
		return "-" + table.Bytes(uint64(-n))
	}
	return table.Bytes(uint64(n))
}

// pageTarget is a target on a page.
type pageTarget struct {
	PID     int
	Program string
	Labels  map[string]string
	Summary *summary
	// Recording is the ID of the process in the ring; empty: no recordings are kept.
	Recording string
}

func newPageTarget(t *target, r *ring.Ring) pageTarget {
	last, _ := t.last()
	return pageTarget{t.process.PID(), t.process.Script(), t.process.Labels(), last, r.IDOf(t.process)}
}

func (a *Agent) serveIndex(w http.ResponseWriter, r *http.Request) {
	in := struct {
		Node     string
		Targets  []pageTarget
		Failures []failure
	}{Node: a.labeler.node, Failures: a.failures.all(r.URL.Query(), a.grantOf(r))}
	for _, t := range a.chosen(r) {
		in.Targets = append(in.Targets, newPageTarget(t, a.ring))
	}
	a.writePage(w, "index", in)
}

func (a *Agent) servePage(w http.ResponseWriter, r *http.Request) {
	all := a.chosen(r)
	if len(all) != 1 {
		http.Error(w, fmt.Sprintf("%d traced processes have these labels; one is needed", len(all)), http.StatusNotFound)
		return
	}
	a.writePage(w, "target", newPageTarget(all[0], a.ring))
}

func (a *Agent) writePage(w http.ResponseWriter, name string, in any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	if err := pages.ExecuteTemplate(w, name, in); err != nil {
		a.log.Warn("a page was not sent", "error", err)
	}
}
