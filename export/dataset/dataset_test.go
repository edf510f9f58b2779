// SPDX-License-Identifier: Apache-2.0

package dataset_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/dataset"
	"github.com/gputrace/gputrace/export/fleet"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

var update = flag.Bool("update", false, "write the files that are made of the schema")

// ranksEnv is the environment variable with the number of simulated ranks, for measurements.
const ranksEnv = "GPUTRACE_RANKS"

// ranksOf returns the number of ranks of a test.
func ranksOf(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv(ranksEnv)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// simulated is the recording of one rank of a training job: the input grows with the rank, and two ranks keep blocks.
func simulated(rank, world, day int) (*eventtest.Job, *recording.Info) {
	const size = 1 << 20
	j := eventtest.NewJob()
	for range 4 {
		j.Alloc(eventtest.Adam, size)
	}
	for step := range 40 {
		input := j.Alloc(eventtest.Input, uint64(size+512*(rank%97)))
		forward := j.Alloc(eventtest.Forward, uint64((day+1)*size))
		backward := j.Alloc(eventtest.Backward, size/2)
		if leaks := rank%128 == 3; leaks && step >= 5+rank/128 {
			j.Alloc(eventtest.Kept, 32<<10)
		}
		for _, a := range []uint64{backward, forward, input} {
			j.Free(a)
		}
		j.Mark(eventtest.Loaded)
	}
	j.Obtain(event.LayerDevice, eventtest.DriverCall, 3<<20)
	reserved := uint64(0)
	for i := range j.Events {
		if e := &j.Events[i]; e.Layer == event.LayerAllocator && e.Allocated != event.Unknown {
			reserved = max(reserved, (e.Allocated+2<<20-1)/(2<<20)*(2<<20))
			e.Reserved = reserved + uint64(rank%5)*2<<20
		}
	}
	began := time.Date(2026, 11, 23+day, 9, 0, 0, 1000*rank, time.UTC)
	return j, &recording.Info{
		Gputrace: "test", PID: eventtest.PID, Started: began, StartedBoot: j.Events[0].Time - 1, Attached: j.Events[0].Time - 1,
		Name: "train.py", Rank: &recording.Rank{Rank: rank, Local: rank % 8, World: world},
		Labels: map[string]string{
			"node": fmt.Sprintf("node-%03d", rank/8), "namespace": "team/a", "pod": fmt.Sprintf("train-%d", rank), "job_id": "4711 é=x",
		},
	}
}

// simulate writes the recordings of a job, and returns its folder.
func simulate(t *testing.T, ranks, day int) string {
	t.Helper()
	dir := t.TempDir()
	for rank := range ranks {
		j, info := simulated(rank, ranks, day)
		folder := filepath.Join(dir, fmt.Sprintf("rank%d-pid%d", rank, info.PID))
		require.NoError(t, os.Mkdir(folder, 0o755))
		w, err := recording.Create(filepath.Join(folder, export.TraceName), info, j.Stack, nil)
		require.NoError(t, err)
		require.NoError(t, w.Write(j.Events))
		require.NoError(t, w.Close(&recording.End{Reason: recording.ReasonStopped, Duration: time.Duration(len(j.Events)) * time.Millisecond}))
	}
	return dir
}

// exported writes recordings into a dataset.
func exported(t *testing.T, dir string, jobs ...string) *fleet.Size {
	t.Helper()
	sum := &fleet.Size{}
	for _, job := range jobs {
		paths, err := export.Recordings(job)
		require.NoError(t, err)
		began, cpu := time.Now(), cpuTime(t)
		size, err := fleet.Write(paths, &fleet.Options{Dir: dir, Job: "other", Version: "test"})
		require.NoError(t, err)
		took, used := time.Since(began).Seconds(), (cpuTime(t) - cpu).Seconds()
		t.Logf("%d ranks, %d rows, %d bytes: %.2f s, %.2f s of CPU", size.Processes, size.Rows, size.Bytes, took, used)
		sum.Processes, sum.Rows, sum.Bytes = sum.Processes+size.Processes, sum.Rows+size.Rows, sum.Bytes+size.Bytes
	}
	return sum
}

// cpuTime returns the CPU time of the test.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// setup returns a value of testdata/setup.sh, which installs what it stands for.
func setup(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("../../testdata/setup.sh", "--print", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// interpreter returns the Python of the test environment, with DuckDB.
func interpreter(t *testing.T) string {
	t.Helper()
	python := setup(t, "python")
	if exec.Command(python, "-c", "import duckdb").Run() != nil {
		missing(t, python+" has no duckdb (testdata/requirements.txt)")
	}
	return python
}

// pyspark returns the folder of Spark for Python.
func pyspark(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("java"); err != nil {
		missing(t, "Spark needs java")
	}
	return setup(t, "pyspark")
}

// missing skips the test; in CI it fails.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// checkSums checks the rows of a moment: each line belongs to the row of a device, and all of them add up to it.
func checkSums(t *testing.T, moments []dataset.MomentRow, lines []dataset.LineRow) {
	t.Helper()
	type key struct {
		process, device, moment string
		time                    int64
	}
	sum := map[key]int64{}
	for i := range moments {
		m := &moments[i]
		k := key{m.Process, m.Device, m.Moment, m.Time}
		require.NotContains(t, sum, k)
		sum[k] = m.Other
		if m.Live != nil {
			sum[k] += *m.Live
		}
	}
	for i := range lines {
		l := &lines[i]
		k := key{l.Process, l.Device, l.Moment, l.Time}
		require.Contains(t, sum, k)
		sum[k] -= l.Bytes
	}
	for k, rest := range sum {
		require.Zero(t, rest, "%v", k)
	}
}

// TestLinesAddUp: the lines of a moment add up to its row, also if most of them have no row of their own.
func TestLinesAddUp(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(5, 20_000), nil)
	require.NoError(t, err)
	p := &dataset.Process{Rank: -1, PID: 7, Program: "a\nb", Started: time.Unix(1e9, 0)}
	for kind, v := range map[string]*view.View{dataset.Now: trace.End(), dataset.Peak: trace.End().AtPeak()} {
		m := dataset.Moment{Process: p, Kind: kind, Time: time.Unix(2e9, 0), View: v}
		moments, lines := m.Rows()
		require.NotEmpty(t, moments)
		checkSums(t, moments, lines)
		require.Equal(t, "a b", moments[0].Program)
		m.Top = 2
		moments, few := m.Rows()
		checkSums(t, moments, few)
		require.Less(t, len(few), len(lines))
		m.Names = func(line string) bool { return line == lines[0].Line }
		moments, few = m.Rows()
		checkSums(t, moments, few)
		names := map[string]bool{}
		for i := range few {
			names[few[i].Line] = true
		}
		require.LessOrEqual(t, len(names), 2)
		require.Contains(t, names, dataset.OtherLines)
	}
}

// TestFolders: the names of folders are those that engines read back, whatever the job is called.
func TestFolders(t *testing.T) {
	for job, want := range map[string]string{
		"train": "job=train", "": "job=__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__": "job=%5F_HIVE_DEFAULT_PARTITION__",
		"a/../b c": "job=a%2F..%2Fb%20c", "é": "job=%5F-0e048d3e", "ü": "job=%5F-63d969d5", "x=1%": "job=x%3D1%25", "a\nb": "job=a%20b",
	} {
		require.Equal(t, want+"/day=2026-01-02/rank=3", dataset.Part{Job: job, Day: "2026-01-02", Rank: 3}.Folder())
	}
	require.Equal(t, "job=j/day=2026-01-02/rank=__HIVE_DEFAULT_PARTITION__", dataset.Part{Job: "j", Day: "2026-01-02", Rank: -1}.Folder())
	long := dataset.Part{Job: strings.Repeat("/", 1000)}.Folder()
	require.LessOrEqual(t, len(strings.Split(long, "/")[0]), 255)
	p := dataset.Process{Labels: map[string]string{"job_id": "7", "pod": "p"}, Job: "folder", Rank: 1, Started: time.Unix(0, 0)}
	require.Equal(t, "7", p.Part(time.Unix(0, 0)).Job)
	p.Labels = nil
	require.Equal(t, dataset.Part{Job: "folder", Day: "1970-01-01", Rank: 1}, p.Part(time.Unix(0, 0)))
}

// TestSchema: columns keep their names, types and numbers. A new column is the last line of its table, also in docs/schemas/dataset.md.
func TestSchema(t *testing.T) {
	var text, docs strings.Builder
	for _, table := range []string{dataset.Moments, dataset.Lines} {
		fmt.Fprintf(&docs, "### `%s`\n\n| column | type | id | |\n|---|---|---|---|\n", table)
		for i, c := range dataset.Columns(table) {
			require.Equal(t, strconv.Itoa(i+1), c.ID, c.Name)
			kind := c.Type
			if !c.Optional {
				kind += " not null"
			}
			fmt.Fprintf(&text, "%s %s %s %s\n", table, c.ID, c.Name, kind)
			require.NotEmpty(t, c.About, c.Name)
			fmt.Fprintf(&docs, "| `%s` | %s | %s | %s |\n", c.Name, kind, c.ID, c.About)
		}
		docs.WriteString("\n")
	}
	const file, page = "testdata/schema.txt", "../../docs/schemas/dataset.md"
	now, err := os.ReadFile(page)
	require.NoError(t, err)
	const from, to = "<!-- columns: written by go test ./export/dataset -update -->\n\n", "<!-- end of columns -->"
	before, rest, ok := strings.Cut(string(now), from)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, to)
	require.True(t, ok)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o644))
		require.NoError(t, os.WriteFile(page, []byte(before+from+docs.String()+to+after), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
	require.Contains(t, string(now), docs.String(), "go test -update writes it")
}

// BenchmarkHour writes what the agent writes of one process in an hour: 60 moments of its ten largest lines.
func BenchmarkHour(b *testing.B) {
	trace, err := view.NewTrace(eventtest.Random(5, 20_000), nil)
	require.NoError(b, err)
	d, err := dataset.Open(b.TempDir())
	require.NoError(b, err)
	began := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	p := &dataset.Process{
		Rank: 1, PID: 7, Program: "train.py", Started: began, Version: "test",
		Labels: map[string]string{"node": "node-001", "namespace": "team", "pod": "train-1", "job": "llm"},
	}
	bytes, rows := int64(0), 0
	for b.Loop() {
		var moments []dataset.MomentRow
		var lines []dataset.LineRow
		for minute := range 60 {
			m := dataset.Moment{Process: p, Kind: dataset.Now, Time: began.Add(time.Duration(minute) * time.Minute), View: trace.End(), Top: 10}
			some, of := m.Rows()
			for i := range of {
				of[i].Bytes += int64(minute * i * 512) // no two moments are equal
			}
			moments, lines = append(moments, some...), append(lines, of...)
		}
		files, err := d.Write(p.Part(began), "hour", "test", moments, lines)
		require.NoError(b, err)
		bytes, rows = files[0].Bytes+files[1].Bytes, len(moments)+len(lines)
	}
	b.ReportMetric(float64(bytes), "bytes")
	b.ReportMetric(float64(rows), "rows")
}
