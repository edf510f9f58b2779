// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// TestConfig: what is refused, with the name of the field.
func TestConfig(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "# nothing": "", "listen: '[::1]:1'": "", "listen: localhost:1": "",
		"listen: ':1'": "allow_insecure", "listen: 0.0.0.0:1": "allow_insecure", "listen: nowhere": "listen",
		"listen: ':1'\nallow_insecure: true": "", "listen: ':1'\nweb_config_file: w.yml": "",
		"nonsense: 1": "nonsense", "top_lines: 101": "top_lines", "max_targets: 0": "max_targets", "memory_limit: 1MiB": "memory_limit",
		"memory_limit: much": "line 1", "ring_size: 5000": "ring_size", "processes: '['": "processes", "interval: 1ms": "interval",
		"dataset: {max_size: 10}": "10 bytes are too few", "dataset: {max_size: 1MiB}": "", "dataset: {dir: results}": "must be an absolute path",
		"dataset: {dir: /results}":             "",
		"cpu_budget: {process: 2.5%, node: 0}": "", "cpu_budget: {process: 0.01}": "not a share", "cpu_budget: {node: -1%}": "not a share",
		"relabel_configs: [{action: nothing}]": "nothing", "labels: {'a-b': c}": "labels",
	} {
		_, err := ParseConfig([]byte(text))
		if want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
	_, err := ReadConfig(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	c, err := ReadConfig("")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9409", c.Listen)
	require.Equal(t, CPUBudgetConfig{Process: 0.01, Node: 0.02}, c.CPUBudget)
}

// TestDatasetFolder: a dataset that cannot be written is known before anything is traced.
func TestDatasetFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	c, err := ParseConfig([]byte("dataset: {dir: " + file + "/dataset}"))
	require.NoError(t, err)
	_, err = New(c, "test", nil, quiet())
	require.ErrorContains(t, err, "dataset.dir: ")
	require.ErrorContains(t, err, "give a folder")
}

// TestLabels: labels that a program or a rule chose cannot pass for others, and are short.
func TestLabels(t *testing.T) {
	c, err := ParseConfig([]byte(`
labels: {cluster: c1, pid: "9"}
relabel_configs:
- {source_labels: [__meta_gputrace_job_id], target_label: team}
- {regex: rank, action: labeldrop}
- {source_labels: [__meta_process_cgroup], target_label: line}
- {source_labels: [__meta_process_executable_name], regex: launcher, action: drop}
`))
	require.NoError(t, err)
	l := labeler{config: c, node: "n1"}
	about := &process.About{Name: "python", Environ: []string{"RANK=1", "SLURM_JOB_ID=" + strings.Repeat("é\xff\n", 100)}}
	out, keep, complete := l.labels(7, about, "0::/a", 0)
	require.True(t, keep)
	require.True(t, complete)
	require.Equal(t, "7", out["pid"])
	require.Equal(t, "n1", out["node"])
	require.Equal(t, "c1", out["cluster"])
	require.Equal(t, out["job_id"], out["team"])
	require.LessOrEqual(t, len([]rune(out["team"])), maxValue)
	require.NotContains(t, out["team"], "\n")
	require.NotContains(t, out, "rank")
	require.NotContains(t, out, "line", "a label of the metrics")
	_, keep, _ = l.labels(7, &process.About{Name: "launcher"}, "", 0)
	require.False(t, keep)
}
