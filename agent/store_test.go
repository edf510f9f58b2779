// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/dataset"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/process"
)

// read returns the rows of all files of a table.
func read[R any](t *testing.T, dir, table string) (rows []R, files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, table, "*", "*", "*", "*.parquet"))
	require.NoError(t, err)
	for _, f := range files {
		some, err := parquet.ReadFile[R](f)
		require.NoError(t, err)
		rows = append(rows, some...)
	}
	return rows, files
}

// momentOf and lineOf are the columns that the tests look at.
type momentOf struct {
	Moment   string `parquet:"moment"`
	Process  string `parquet:"process"`
	Node     string `parquet:"node,optional"`
	PID      int64  `parquet:"pid"`
	Live     int64  `parquet:"live_bytes,optional"`
	Reserved int64  `parquet:"reserved_bytes,optional"`
	Verdict  string `parquet:"verdict,optional"`
}

type lineOf struct {
	Moment  string `parquet:"moment"`
	Process string `parquet:"process"`
	Line    string `parquet:"line"`
	Bytes   int64  `parquet:"bytes"`
}

// TestStore: the dataset agrees with the metrics of each process, and a job of any name is one folder.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	r := start(t, "top_lines: 3\ndataset: {dir: "+dir+", interval: 1s, flush: 1s}\n")
	s := <-r.sources
	one := &madeTarget{pid: 1 << 30, file: "/app/train.py"}
	one.about = process.About{Name: "python", Environ: []string{"RANK=1", "WORLD_SIZE=2", "SLURM_JOB_ID=77"}}
	two := &madeTarget{pid: 1<<30 + 1, file: hostile}
	two.about = process.About{Name: hostile, Environ: []string{"SLURM_JOB_ID=../../" + hostile}}
	s.arrive(one, 5)
	s.arrive(two, 2)
	r.until("/metrics", "gputrace_agent_targets 2\n")
	var moments []momentOf
	require.Eventually(t, func() bool {
		moments, _ = read[momentOf](t, dir, dataset.Moments)
		return len(moments) >= 4
	}, 20*time.Second, 50*time.Millisecond)
	live := map[string]int64{}
	for _, m := range moments {
		live[m.Process] = m.Live
		require.EqualValues(t, 1<<20, m.Reserved)
		require.Equal(t, "UNKNOWN", m.Verdict)
	}
	require.Len(t, live, 2)
	lines, files := read[lineOf](t, dir, dataset.Lines)
	sum := map[string]int64{}
	for _, l := range lines {
		if l.Moment == dataset.Peak {
			sum[l.Process] += l.Bytes
		}
	}
	require.Equal(t, live, sum, "both are at their peak")
	for _, f := range files {
		rel, err := filepath.Rel(dir, f)
		require.NoError(t, err)
		part := strings.Split(rel, "/")
		require.Len(t, part, 5)
		parts := []string{"job=77/rank=1", "job=..%2F..%2Fa%22b%5Cc%20%3Cscript%3E/rank=__HIVE_DEFAULT_PARTITION__"}
		require.Contains(t, parts, part[1]+"/"+part[3])
	}
	s.end(two)
	metrics := r.until("/metrics", "gputrace_agent_targets 1\n")
	require.Contains(t, metrics, "gputrace_agent_dataset_failures_total 0\n")
	require.Regexp(t, `gputrace_agent_dataset_rows_total\{outcome="written"\} [1-9]`, metrics)
	require.Contains(t, metrics, `gputrace_agent_dataset_rows_total{outcome="dropped"} 0`)
	require.Regexp(t, `gputrace_agent_dataset_bytes [1-9]`, metrics)
}

// storeOf is the store of a configuration, with a process.
func storeOf(t *testing.T, dir string, rows int) *store {
	t.Helper()
	c, err := ParseConfig([]byte("dataset: {dir: " + dir + "}"))
	require.NoError(t, err)
	c.Dataset.MaxRows = rows
	return newStore(c, "test", "node/1", quiet())
}

// put lets rows of a day wait.
func (s *store) put(day string, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[dataset.Part{Job: "j", Day: day, Rank: 1}] = &waiting{moments: make([]dataset.MomentRow, rows)}
	s.rows += rows
}

// TestStoreFails: rows wait while the dataset cannot be written, and each is written once.
func TestStoreFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dataset")
	require.NoError(t, os.WriteFile(dir, nil, 0o644))
	s := storeOf(t, dir, 10)
	s.put("2026-01-01", 3)
	require.Error(t, s.flush())
	require.Equal(t, 3, s.rows)
	require.NoError(t, os.Remove(dir))
	part := dataset.Part{Job: "j", Day: "2026-01-01", Rank: 1}
	blocked := filepath.Join(dir, dataset.Moments, part.Folder())
	require.NoError(t, os.MkdirAll(filepath.Dir(blocked), 0o755))
	require.NoError(t, os.WriteFile(blocked, nil, 0o644))
	require.Error(t, s.flush(), "the lines can be written, the moments cannot")
	_, files := read[lineOf](t, dir, dataset.Lines)
	require.Empty(t, files)
	require.Equal(t, 3, s.rows)
	require.NoError(t, os.Remove(blocked))
	require.NoError(t, s.flush())
	rows, _ := read[momentOf](t, dir, dataset.Moments)
	require.Len(t, rows, 3)
	require.Zero(t, s.rows)
	require.EqualValues(t, 3, s.counts.written.Load())
	require.Empty(t, s.waiting)
}

// TestStoreBounds: rows beyond the limit are dropped and counted; old files are removed, but not of another node.
func TestStoreBounds(t *testing.T) {
	dir := t.TempDir()
	s := storeOf(t, dir, 2)
	s.put("2026-01-01", 2)
	p := &dataset.Process{Rank: -1, Started: time.Unix(1e9, 0)}
	s.add(&dataset.Moment{Process: p, Kind: dataset.Now, Time: time.Unix(1e9, 0), View: viewOfBlocks(t)})
	require.NotZero(t, s.counts.dropped.Load())
	require.Equal(t, 2, s.rows)
	require.NoError(t, s.flush())
	other := filepath.Join(dir, dataset.Lines, "job=j", "day=2026-01-01", "rank=1", "agent-node-2-x.parquet")
	require.NoError(t, os.WriteFile(other, nil, 0o644))
	const name = "-20260101T000000.000000Z.parquet"
	longer := filepath.Join(filepath.Dir(other), "agent-node_1-2"+name) // of a node whose name begins with this one's
	left := filepath.Join(filepath.Dir(other), ".agent-node_1"+name+".7.7.tmp")
	young := filepath.Join(filepath.Dir(other), ".agent-node_1"+name+".8.8.tmp")
	for _, file := range []string{longer, left, young} {
		require.NoError(t, os.WriteFile(file, nil, 0o644))
	}
	old := time.Now().Add(-2 * abandoned)
	require.NoError(t, os.Chtimes(left, old, old))

	again := storeOf(t, dir, 2)
	again.config.MaxSize = 3 * block
	again.put("2026-01-02", 1)
	require.NoError(t, again.flush())
	require.NoFileExists(t, left)
	require.FileExists(t, young, "an agent may just be writing it")
	require.EqualValues(t, again.counts.files.Load(), len(again.files))
	require.LessOrEqual(t, again.counts.bytes.Load(), int64(3*block))
	require.NotZero(t, again.counts.removed.Load())
	require.FileExists(t, other)
	require.NoDirExists(t, filepath.Join(dir, dataset.Moments, "job=j", "day=2026-01-01"))
	again.sweep(time.Now().Add(31 * 24 * time.Hour))
	require.Empty(t, again.files)
	require.FileExists(t, other)
	require.FileExists(t, longer)
	require.NoDirExists(t, filepath.Join(dir, dataset.Moments, "job=j"))
	require.DirExists(t, filepath.Join(dir, dataset.Moments))
}

// TestStoreRetries: after a failure it tries again by itself, and at the end what waits is written.
func TestStoreRetries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dataset")
	require.NoError(t, os.WriteFile(dir, nil, 0o644))
	s := storeOf(t, dir, 10)
	s.config.Flush /= 3600
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		s.run(ctx)
		close(done)
	}()
	s.put("2026-01-01", 3)
	require.Eventually(t, func() bool { return s.counts.failures.Load() > 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, os.Remove(dir))
	require.Eventually(t, func() bool { return s.counts.written.Load() == 3 }, 20*time.Second, time.Millisecond)
	s.put("2026-01-02", 1)
	cancel()
	<-done
	require.EqualValues(t, 4, s.counts.written.Load())
}

// viewOfBlocks is a view with memory.
func viewOfBlocks(t *testing.T) *view.View {
	t.Helper()
	trace, err := view.NewTrace(eventtest.Random(1, 1000), nil)
	require.NoError(t, err)
	return trace.End()
}
