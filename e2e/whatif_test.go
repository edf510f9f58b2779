// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var allWhatIf = flag.Bool("whatif", false, "run every workload under every setting, and print the table of docs/measured/what-if.md")

// Memory of the stand-in: the device of the recordings, and what its context takes.
const (
	whatIfDevice  = 24 << 30
	whatIfContext = 460 << 20
)

// whatIfWorkload is a program that is run under settings.
type whatIfWorkload struct {
	script  string
	args    []string
	short   []string // settings that are run without -whatif
	forward bool     // it has no optimizer, whose calls are counted as steps: steps are its forward passes
}

var whatIfWorkloads = []whatIfWorkload{
	{"mlp.py", []string{"--steps", "12"}, []string{"expandable"}, false},
	{"gpt.py", []string{"--steps", "6", "--layers", "4", "--width", "256", "--vocab", "5000", "--seq", "256"}, nil, false},
	{"resnet.py", []string{"--steps", "4", "--batch", "8", "--size", "64"}, nil, false},
	{"lengths.py", []string{"--steps", "30"}, []string{"divisions", "device 60 %"}, false},
	{"lengths.py", []string{"--steps", "30", "--longest", "2048", "--empty", "7", "--width", "256"}, []string{"split"}, false},
	{"variants.py", []string{"--case", "lengths"}, nil, false},
	{"variants.py", []string{"--case", "streams"}, nil, false},
	{"variants.py", []string{"--case", "retried"}, []string{"device 85 %"}, false},
	{"variants.py", []string{"--case", "checkpointing"}, nil, false},
	{"variants.py", []string{"--case", "server", "--steps", "60"}, nil, true},
}

// whatIfSetting is flags of gputrace, and the same for PyTorch.
type whatIfSetting struct {
	name  string
	conf  string
	flags []string
	// share of the recorded peak that the device has beside the context and other libraries; 0: it is large
	share    float64
	fraction float64 // share of the recorded peak that the fraction allows; 0: none is set
}

var whatIfSettings = []whatIfSetting{
	{"none", "", nil, 0, 0},
	{"expandable", "expandable_segments:True", []string{"--expandable-segments"}, 0, 0},
	{"split", "max_split_size_mb:32", []string{"--max-split-size", "32MiB"}, 0, 0},
	{"divisions", "roundup_power2_divisions:4", []string{"--roundup-divisions", "4"}, 0, 0},
	{"device 60 %", "", nil, 0.6, 0},
	{"device 85 %", "", nil, 0.85, 0},
	{"device 85 %, expandable", "expandable_segments:True", []string{"--expandable-segments"}, 0.85, 0},
	{"device 85 %, split", "max_split_size_mb:32", []string{"--max-split-size", "32MiB"}, 0.85, 0},
	{"fraction 80 %", "", nil, 0, 0.8},
	{"fraction 90 %, gc", "garbage_collection_threshold:0.6", []string{"--gc-threshold", "0.6"}, 0, 0.9},
}

// whatIfRow is a replay as JSON has it.
type whatIfRow struct {
	Peak   uint64 `json:"peak_reserved_bytes"`
	Failed *struct {
		Step  int    `json:"step"`
		Site  string `json:"site"`
		Phase string `json:"phase"`
		Block uint64 `json:"block_bytes"`
	} `json:"failed"`
}

// whatIfReport is what gputrace whatif prints.
type whatIfReport struct {
	Devices []struct {
		Peak  uint64 `json:"recorded_peak_reserved_bytes"`
		Check struct {
			Compared, Equal uint64
		} `json:"check"`
		Rows []whatIfRow `json:"settings"`
	} `json:"devices"`
}

// whatIfTruth is what whatif_run.py prints.
type whatIfTruth struct {
	Peak   uint64 `json:"peak"`
	Failed *struct {
		Step     int    `json:"step"`
		File     string `json:"file"`
		Line     int    `json:"line"`
		Backward bool   `json:"backward"`
		Message  string `json:"message"`
	} `json:"failed"`
}

// TestWhatIf: what a replay says of other settings is what PyTorch then does: the peak of what is reserved to the byte, and the first
// request that fails, by its step, line and size. With -whatif it is every workload under every setting.
func TestWhatIf(t *testing.T) {
	for i := range whatIfWorkloads {
		w := &whatIfWorkloads[i]
		if !*allWhatIf && w.short == nil {
			continue
		}
		t.Run(strings.Join(append([]string{w.script}, w.args...), " "), func(t *testing.T) {
			file := recordWhatIf(t, w.script, w.args)
			base := askWhatIf(t, file, "--outside", itoa(whatIfContext>>20)+"MiB")
			check := base.Devices[0].Check
			require.Positive(t, check.Compared)
			require.Equal(t, check.Compared, check.Equal, "what is reserved behind each event, under the recorded settings")
			for _, s := range whatIfSettings {
				if !*allWhatIf && !strings.Contains(strings.Join(w.short, "|")+"|", s.name+"|") {
					continue
				}
				t.Run(s.name, func(t *testing.T) { s.compare(t, file, base.Devices[0].Peak, w) })
			}
		})
	}
}

// recordWhatIf records a workload with PyTorch's defaults.
func recordWhatIf(t *testing.T, script string, args []string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "recording")
	run := []string{"run", "-o", out, "-f", "none", "--no-holders", "--", filepath.Join(env.testdata, "run"), workload(script), "--cold"}
	cmd := exec.Command(env.binary, append(run, args...)...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "XDG_CACHE_HOME="+env.cache)
	text, err := cmd.CombinedOutput()
	requireEnded(t, err, text)
	found, err := filepath.Glob(filepath.Join(out, "*", "trace.gputrace"))
	require.NoError(t, err)
	if len(found) == 0 {
		found = []string{filepath.Join(out, "trace.gputrace")}
	}
	require.Len(t, found, 1)
	return found[0]
}

func askWhatIf(t *testing.T, file string, args ...string) *whatIfReport {
	t.Helper()
	text, err := output(env.binary, append([]string{"whatif", file, "--json"}, args...)...)
	require.NoError(t, err)
	out := &whatIfReport{}
	require.NoError(t, json.Unmarshal([]byte(text), out))
	require.Len(t, out.Devices, 1)
	return out
}

// compare replays a recording under a setting, and runs the workload with it.
func (s *whatIfSetting) compare(t *testing.T, file string, peak uint64, w *whatIfWorkload) {
	device := uint64(whatIfDevice)
	if s.share > 0 { // cuBLAS has 16 MiB
		device = uint64(float64(peak)*s.share)>>20<<20 + whatIfContext + 16<<20
	}
	ask := []string{"--outside", itoa(whatIfContext>>20) + "MiB", "--device-memory", fmt.Sprintf("%dMiB", device>>20)}
	environment := []string{fmt.Sprintf("STANDIN_GPU_MEM=%dMiB", device>>20), "PYTORCH_CUDA_ALLOC_CONF=" + s.conf}
	if s.fraction > 0 {
		fraction := fmt.Sprintf("%.6f", float64(peak)*s.fraction/float64(device))
		ask, environment = append(ask, "--fraction", fraction), append(environment, "WHATIF_FRACTION="+fraction)
	}
	rows := askWhatIf(t, file, append(ask, s.flags...)...).Devices[0].Rows
	row := rows[len(rows)-1]
	if len(s.flags) == 0 {
		row = rows[0]
	}
	truth := runWhatIf(t, environment, w.script, w.args)
	t.Logf("| %s | %s | %d | %d | %s | %s |", w.script, s.name, truth.Peak, row.Peak, truth.failure(), row.failure())
	require.Equal(t, truth.Peak, row.Peak, "peak of what is reserved")
	require.Equal(t, truth.Failed != nil, row.Failed != nil, "%+v", truth.Failed)
	if truth.Failed == nil {
		return
	}
	if w.forward {
		require.Zero(t, truth.Failed.Step)
	} else {
		require.Equal(t, truth.Failed.Step, row.Failed.Step)
	}
	require.Equal(t, truth.Failed.Backward, row.Failed.Phase == "backward")
	if !truth.Failed.Backward { // a thread of autograd's has no Python frame, so the line is the one of forward
		require.Contains(t, row.Failed.Site+" ", fmt.Sprintf("%s:%d ", truth.Failed.File, truth.Failed.Line))
	}
	require.Contains(t, truth.Failed.Message, "Tried to allocate "+asPyTorch(segmentOf(row.Failed.Block))+".")
}

// runWhatIf runs a workload until its end or its first failure.
func runWhatIf(t *testing.T, environment []string, script string, args []string) *whatIfTruth {
	t.Helper()
	cmd := exec.Command(filepath.Join(env.testdata, "run"), append([]string{workload("whatif_run.py"), workload(script), "--cold"},
		args...)...)
	cmd.Env = append(append(os.Environ(), "OMP_NUM_THREADS=1"), environment...)
	text, err := cmd.CombinedOutput()
	requireEnded(t, err, text)
	_, line, ok := strings.Cut(string(text), "WHATIF ")
	require.True(t, ok, string(text))
	out := &whatIfTruth{}
	require.NoError(t, json.NewDecoder(strings.NewReader(line)).Decode(out))
	return out
}

// abortedAtExit is what PyTorch sometimes says after its last line, traced or not (docs/use/known-issues.md). What it did
// before is complete.
const abortedAtExit = "terminate called without an active exception"

// requireEnded demands that a training script has done its work.
func requireEnded(t *testing.T, err error, text []byte) {
	t.Helper()
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(string(text), abortedAtExit) {
		status := exit.Sys().(syscall.WaitStatus)
		const byShell = 128 // and the signal, as run and shells say it
		require.True(t, status.Signaled() && status.Signal() == syscall.SIGABRT || status.ExitStatus() == byShell+int(syscall.SIGABRT),
			"%v: %s", err, text)
		return
	}
	require.NoError(t, err, string(text))
}

// segmentOf is what the driver is asked for (get_allocation_size of CUDACachingAllocator.cpp).
func segmentOf(block uint64) uint64 {
	switch {
	case block <= 1<<20:
		return 2 << 20
	case block < 10<<20:
		return 20 << 20
	}
	return (block + 2<<20 - 1) >> 21 << 21
}

// asPyTorch is a size as PyTorch's message has it (format_size of CUDACachingAllocator.cpp).
func asPyTorch(n uint64) string {
	if n <= 1<<30 {
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

func (w *whatIfTruth) failure() string {
	if w.Failed == nil {
		return "-"
	}
	return fmt.Sprintf("step %d, %s:%d", w.Failed.Step, w.Failed.File, w.Failed.Line)
}

func (w *whatIfRow) failure() string {
	if w.Failed == nil {
		return "-"
	}
	return fmt.Sprintf("step %d, %s, %s", w.Failed.Step, w.Failed.Phase, w.Failed.Site)
}
