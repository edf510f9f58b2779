// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gputrace/gputrace/recording"
)

// viewsName selects this measurement on the command line.
const viewsName = "views"

// viewScript is the training script whose recording is exported: the one with most events.
const viewScript = "gpt"

// views are the formats that are measured, and how a program that people open them with reads them. FILE is the file, and what
// needs an interpreter has PyTorch's.
var views = []struct {
	format, file string
	opener       string
	open         []string // nil: gputrace report, of the recording itself
}{
	{"", "trace.gputrace", "`gputrace report`", nil},
	{"pprof", "inuse.pb.gz", "`go tool pprof -top`", []string{"go", "tool", "pprof", "-top", "FILE"}},
	{"html", "report.html", "", nil},
	{"perfetto", "timeline.pftrace.gz", "Perfetto's Python bindings", []string{"PYTHON", "-c", openPerfetto, "FILE"}},
	{"chrome", "timeline.json.gz", "Python's json", []string{"PYTHON", "-c", "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))",
		"FILE"}},
	{"parquet", "allocations.parquet", "DuckDB, sum by stack", []string{"PYTHON", "-c", openParquet, "FILE"}},
	{"csv", "allocations.csv", "Python's csv", []string{"PYTHON",
		"-c", "import csv, sys; csv.field_size_limit(1 << 30); sum(1 for _ in csv.reader(open(sys.argv[1])))", "FILE"}},
	{"snapshot", "snapshot.pickle", "Python's pickle", []string{"PYTHON", "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))",
		"FILE"}},
	{"json", "memory.json", "Python's json", []string{"PYTHON", "-c", "import json, sys; json.load(open(sys.argv[1]))", "FILE"}},
	{"png", "memory.png", "", nil},
}

const (
	openPerfetto = "import gzip, sys; from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as p; " +
		"p.Trace.FromString(gzip.open(sys.argv[1]).read())"
	openParquet = "import duckdb, sys; duckdb.sql(f\"select stack, sum(bytes) from '{sys.argv[1]}' group by stack order by 2 " +
		"desc\").fetchall()"
)

// viewResult is one format.
type viewResult struct {
	name, opener string
	bytes        float64 // an event
	write        series  // CPU ns an event, reading of the recording included; of the recording itself none
	open         series  // CPU seconds
}

// viewsResult is all formats of one recording.
type viewsResult struct {
	events int
	rows   []viewResult
}

// measureViews records a script once, and writes and opens each format of it.
func measureViews(e *environment, o Options) (*viewsResult, error) {
	progress("views: recording %s", viewScript)
	trace, err := recordTrace(e, viewScript)
	if err != nil {
		return nil, fmt.Errorf("views: %w", err)
	}
	out := &viewsResult{}
	if out.events, err = countEvents(trace); err != nil {
		return nil, fmt.Errorf("views: %w", err)
	}
	for i := range views {
		out.rows = append(out.rows, viewResult{name: views[i].format, opener: views[i].opener})
	}
	out.rows = append(out.rows, viewResult{name: "SQLite, for comparison", opener: "SQLite, sum by stack"})
	for round := range o.Rounds {
		for i := range views {
			progress("views: %s, round %d of %d", views[i].file, round+1, o.Rounds)
			if err := out.measure(e, trace, i); err != nil {
				return out, fmt.Errorf("views, %s: %w", views[i].file, err)
			}
		}
		if err := out.sqlite(e, filepath.Join(filepath.Dir(trace), "allocations.csv")); err != nil {
			return out, fmt.Errorf("views, SQLite: %w", err)
		}
	}
	return out, nil
}

func countEvents(trace string) (int, error) {
	r, err := recording.Open(trace)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	events, err := readEvents(r)
	return len(events), err
}

func (out *viewsResult) measure(e *environment, trace string, i int) error {
	v, row := &views[i], &out.rows[i]
	file := filepath.Join(filepath.Dir(trace), v.file)
	if v.format != "" {
		cpu, err := cpuOf(exec.Command(e.gputrace, "export", "-f", v.format, "-o", file, "--force", trace))
		if err != nil {
			return err
		}
		row.write = append(row.write, cpu/float64(out.events)*1e9)
	}
	st, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("look at it: %w", err)
	}
	row.bytes = float64(st.Size()) / float64(out.events)
	if v.opener == "" {
		return nil
	}
	args := []string{e.gputrace, "report", file}
	if v.open != nil {
		args = nil
		for _, a := range v.open {
			switch a {
			case "FILE":
				a = file
			case "PYTHON":
				a = e.python
			}
			args = append(args, a)
		}
	}
	cpu, err := cpuOf(exec.Command(args[0], args[1:]...))
	row.open = append(row.open, cpu)
	return err
}

// sqlite writes the same events into a database.
func (out *viewsResult) sqlite(e *environment, allocations string) error {
	db := e.unique("events.db")
	defer os.Remove(db)
	text, err := exec.Command(e.python, "bench/measure/sqlite.py", allocations, db).Output()
	if err != nil {
		return err
	}
	var said struct {
		Events      int
		Write, Open float64
		Bytes       float64
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return err
	}
	row := &out.rows[len(out.rows)-1]
	row.bytes = said.Bytes / float64(said.Events)
	row.write = append(row.write, said.Write/float64(said.Events)*1e9)
	row.open = append(row.open, said.Open)
	return nil
}

// cpuOf runs a command and returns its CPU time, seconds.
func cpuOf(cmd *exec.Cmd) (float64, error) {
	if text, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, text)
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

func viewsTimes(r *viewsResult, w io.Writer) {
	fmt.Fprintf(w, "Every view of one recording: %s of %s.py, %d events, late attach. CPU times; to write a view includes reading the "+
		"recording, and to open one "+
		"includes starting the program that does.\n\n", recordFor, viewScript, r.events)
	t := table{{"format", "bytes an event", "to write, ns an event", "opened by", "to open, s"}}
	for i := range r.rows {
		row := &r.rows[i]
		name, write, open := row.name, "-", "-"
		if name == "" {
			name = "`trace.gputrace`"
		}
		if len(row.write) > 0 {
			write = row.write.text("%.0f")
		}
		if len(row.open) > 0 {
			open = row.open.text("%.2f")
		}
		t.row(name, fmt.Sprintf("%.2f", row.bytes), write, row.opener, open)
	}
	t.print(w)
}
