// SPDX-License-Identifier: Apache-2.0

package dataset_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/export"
)

// jobName is the name that the simulated jobs, "4711 é=x", have in the dataset: the checksum is zlib.crc32 of theirs.
const jobName = "4711 _=x-9c481c49"

// answers are the rows of each query.
type answers map[string][]any

// ask runs testdata/ask.py for an engine in the folder of a dataset, with the queries of a folder; empty: its own.
func ask(t *testing.T, python, engine, dir, queries string, env ...string) answers {
	t.Helper()
	script, err := filepath.Abs("testdata/ask.py")
	require.NoError(t, err)
	began := time.Now()
	args := []string{script, engine}
	if queries != "" {
		args = append(args, queries)
	}
	cmd := exec.Command(python, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	t.Logf("%s: %.2f s, %.2f s of CPU without Java, %s", engine, time.Since(began).Seconds(), cpu.Seconds(), lines[len(lines)-1])
	return decoded(t, out)
}

func decoded(t *testing.T, text []byte) answers {
	t.Helper()
	var out answers
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&out))
	return out
}

// line is a line of the table of peaks.
type line struct{ layer, line, file string }

// job is what the single recordings of a job say, without a dataset.
type job struct {
	day       string
	table     *ranks.Table
	lines     map[line]*[3]int64 // bytes, blocks, processes
	waste     [][]any
	processes int
}

// jobOf opens every recording of a job.
func jobOf(t *testing.T, dir, day string) *job {
	t.Helper()
	paths, err := export.Recordings(dir)
	require.NoError(t, err)
	j := &job{day: day, lines: map[line]*[3]int64{}, processes: len(paths)}
	j.table, err = export.Ranks(paths, nil, "test")
	require.NoError(t, err)
	for _, path := range paths {
		s, err := export.Open(path, nil)
		require.NoError(t, err)
		rows, err := s.PeakRows(false, "test")
		require.NoError(t, err)
		seen := map[line]bool{}
		for i := range rows {
			r := &rows[i]
			at := line{r.Layer, strings.TrimSpace(r.Name + " " + r.Func), r.File}
			if j.lines[at] == nil {
				j.lines[at] = &[3]int64{}
			}
			j.lines[at][0] += r.Bytes
			j.lines[at][1] += int64(r.Blocks)
			if !seen[at] {
				seen[at] = true
				j.lines[at][2]++
			}
		}
		a := s.Trace.End().Snapshot.Accounts[0]
		at := s.Info.Started.Add(time.Duration(s.Trace.End().Snapshot.Time - s.Info.StartedBoot)).UnixMicro()
		l := s.Info.Labels
		unused := a.Reserved - a.Allocated
		j.waste = append(j.waste, []any{l["namespace"], l["pod"], l["node"], jobName, 1, unused, a.Reserved, a.Allocated, at})
		require.NoError(t, s.Close())
	}
	return j
}

// expected are the answers that the single recordings of jobs have.
func expected(t *testing.T, jobs ...*job) answers {
	t.Helper()
	var skew, grew, lines, changes, waste [][]any
	for i, j := range jobs {
		for _, s := range j.table.Skews {
			most, least := &j.table.Processes[s.Most], &j.table.Processes[s.Least]
			bytes := func(p *ranks.Process) int64 {
				if s.Category == ranks.Total {
					return p.Peak
				}
				return p.Categories[s.Category]
			}
			skew = append(skew, []any{jobName, j.day, s.Category, j.processes, s.Bytes, most.Rank, bytes(most), least.Rank, bytes(least)})
		}
		for place, g := range j.table.Growing {
			p := &j.table.Processes[g]
			s, err := export.Open(p.File, nil)
			require.NoError(t, err)
			l := s.Info.Labels
			key := s.Info.Started.UTC().Format("20060102T150405.000000Z") + "-4242"
			require.NoError(t, s.Close())
			grew = append(grew, []any{
				jobName, j.day, place + 1, p.Rank, key, l["node"], l["pod"], "train.py", p.Grew.UnixMicro(), answer.BytesPerStep(p.Leaks),
				p.Leaks.Findings[0].Name(), nil,
			})
		}
		for at, n := range j.lines {
			var file any
			if at.file != "" {
				file = at.file
			}
			lines = append(lines, []any{jobName, j.day, at.layer, at.line, file, n[0], n[1], n[2]})
			if i == 0 {
				continue
			}
			before := 0.0
			if b := jobs[i-1].lines[at]; b != nil {
				before = float64(b[0]) / float64(jobs[i-1].processes)
			}
			if after := float64(n[0]) / float64(j.processes); after > before {
				changes = append(changes, []any{jobName, j.day, jobs[i-1].day, at.layer, at.line, at.file, before, after, after - before})
			}
		}
		waste = append(waste, j.waste...)
	}
	text, err := json.Marshal(map[string][][]any{
		"skew": skew, "grew_first": grew, "peak_by_line": lines, "regressions": changes, "waste": waste,
	})
	require.NoError(t, err)
	return decoded(t, text)
}

// sameRows compares the rows of an answer in any order.
func sameRows(t *testing.T, want, got []any, name string) {
	t.Helper()
	sorted := func(rows []any) []string {
		var out []string
		for _, r := range rows {
			text, err := json.Marshal(r)
			require.NoError(t, err)
			out = append(out, string(text))
		}
		slices.SortFunc(out, func(x, y string) int { return cmp.Compare(x, y) })
		return out
	}
	require.Equal(t, sorted(want), sorted(got), name)
}

// TestQueries: the queries over the dataset of a job of 1,000 ranks say what its single recordings say, to the byte, in DuckDB and in
// Spark.
func TestQueries(t *testing.T) {
	if testing.Short() {
		t.Skip("other programs are run once, not under the race detector again")
	}
	python := interpreter(t)
	n := ranksOf(t, 240) // 1,000 take a minute longer
	first, second := simulate(t, n, 0), simulate(t, max(n/10, 4), 1)
	dir := t.TempDir()
	size := exported(t, dir, first, second)
	require.Equal(t, n+max(n/10, 4), size.Processes)
	want := expected(t, jobOf(t, first, "2026-11-23"), jobOf(t, second, "2026-11-24"))
	duckdb := ask(t, python, "duckdb", dir, "")
	require.Len(t, want["waste"], size.Processes)
	merged := mergedWaste(t, want["waste"])
	for _, name := range slices.Sorted(maps.Keys(want)) {
		require.NotEmpty(t, want[name], name)
		if name == "waste" {
			sameRows(t, merged, duckdb[name], name)
			continue
		}
		sameRows(t, want[name], duckdb[name], name)
	}
	ask(t, python, "compact", dir, "")
	compact, queries := filepath.Join(dir, "compact"), filepath.Join(dir, "queries")
	require.Equal(t, duckdb, ask(t, python, "duckdb", compact, queries), "compacted")
	t.Logf("compacted: %d bytes", sizeOf(t, compact))
	spark := "PYTHONPATH=" + pyspark(t)
	require.Equal(t, duckdb, ask(t, python, "spark", dir, "", spark), "DuckDB and Spark agree, in the order of the rows too")
	if os.Getenv(ranksEnv) != "" {
		require.Equal(t, duckdb, ask(t, python, "spark", compact, queries, spark), "compacted")
	}
}

// sizeOf returns the size of the files below a folder.
func sizeOf(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	}))
	return bytes
}

// mergedWaste adds up the rows of a pod, which ran on both days.
func mergedWaste(t *testing.T, rows []any) []any {
	t.Helper()
	sum := map[string][]any{}
	for _, r := range rows {
		row := slices.Clone(r.([]any))
		key := row[1].(string)
		if sum[key] == nil {
			sum[key] = row
			continue
		}
		for i := 4; i < 8; i++ {
			a, err := sum[key][i].(json.Number).Int64()
			require.NoError(t, err)
			b, err := row[i].(json.Number).Int64()
			require.NoError(t, err)
			text, err := json.Marshal(a + b)
			require.NoError(t, err)
			sum[key][i] = json.Number(text)
		}
		sum[key][8] = row[8] // the second day is later
	}
	var out []any
	for _, r := range sum {
		out = append(out, r)
	}
	return out
}
