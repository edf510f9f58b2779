// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && frameworks

package e2e

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// summaryKeys is what summary --json writes.
type summaryKeys struct {
	Devices []struct {
		Transformers map[string]int64
		Lightning    map[string]int64
		Composer     map[string]float64
	}
}

// monitored is a job that logs memory by what a library has for that, with its environment.
func monitored(t *testing.T, library string) (dir string, environment, command []string) {
	t.Helper()
	venv := cmp.Or(os.Getenv("JOBS_VENV"), filepath.Join(env.testdata, ".work", "jobs"))
	dir = t.TempDir()
	environment = []string{"RUN_PROGRAM=" + filepath.Join(venv, "bin", "python"), "HF_HUB_OFFLINE=1", "STANDIN_PRELOAD=0"}
	return dir, environment, []string{filepath.Join(env.testdata, "run"), filepath.Join(env.testdata, "jobs", "monitors.py"), library, dir}
}

func summaryJSON(t *testing.T, args ...string) *summaryKeys {
	t.Helper()
	text, err := output(env.binary, append([]string{"summary", "--json"}, args...)...)
	require.NoError(t, err)
	s := &summaryKeys{}
	require.NoError(t, json.Unmarshal([]byte(text), s))
	require.Len(t, s.Devices, 1)
	return s
}

// TestSummaryOfMonitors: what Lightning's DeviceStatsMonitor and Composer's MemoryMonitor log has the same keys and
// figures from outside. It needs what testdata/jobs/setup.sh installs:
//
//	go test -tags frameworks ./e2e -run TestSummaryOf
func TestSummaryOfMonitors(t *testing.T) {
	dir, environment, command := monitored(t, "lightning")
	p := startIn(t, dir, environment, command[0], command[1:]...)
	path := filepath.Join(dir, "logged.json")
	eventually(t, "what was logged", func() bool { return exists(path) })
	var logged struct {
		Lightning map[string]int64
		Composer  map[string]float64
	}
	readJSON(t, path, &logged)
	s := summaryJSON(t, "-p", itoa(p.pid))
	for _, key := range []string{"max_split_size", "num_device_alloc", "num_device_free", "num_oom_rejections", "num_sync_all_streams"} {
		delete(logged.Lightning, "DeviceStatsMonitor.on_train_batch_end/"+key) // no figures of memory: they are not read
	}
	require.Greater(t, len(logged.Lightning), 80)
	require.Equal(t, logged.Lightning, s.Devices[0].Lightning)
	require.Len(t, logged.Composer, 9)
	require.Equal(t, logged.Composer, s.Devices[0].Composer)
	p.touch(t, "go")
}

// TestSummaryOfTransformers: the figures of transformers' TrainerMemoryTracker from outside, up to the batch that is left at its end.
func TestSummaryOfTransformers(t *testing.T) {
	const batch = 1 << 16 // more than a batch of the job has, bytes
	dir, environment, command := monitored(t, "transformers")
	out := filepath.Join(dir, "recorded")
	cmd := exec.Command(env.binary, append([]string{"run", "-o", out, "-f", "none", "--"}, command...)...)
	cmd.Env = append(os.Environ(), environment...)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	var logged map[string]float64
	readJSON(t, filepath.Join(dir, "logged.json"), &logged)
	got := summaryJSON(t, out).Devices[0].Transformers
	require.Len(t, got, 5)
	for key, value := range got {
		require.Contains(t, logged, key)
		require.InDelta(t, logged[key], value, batch, key)
	}
	require.EqualValues(t, logged["init_mem_gpu_alloc_delta"], got["init_mem_gpu_alloc_delta"])
}
