// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// training is the command line of leaks_patterns.py with its smallest model.
func training(args ...string) []string {
	args = append([]string{"--steps", "40", "--batch", itoa(leakBatch), "--width", itoa(leakWidth), "--counters", "/dev/null"}, args...)
	return append([]string{filepath.Join(env.testdata, "run"), workload("leaks_patterns.py")}, args...)
}

// runCheck runs a program with --check.
func runCheck(t *testing.T, rules []string, environment []string, program ...string) *command {
	t.Helper()
	args := append([]string{"run", "-o", "OUT", "-f", "none", "--check"}, rules...)
	c := newCommand(t, append(append(args, "--"), program...)...)
	c.cmd.Env = append(append(c.cmd.Env, "OMP_NUM_THREADS=1"), environment...)
	return c.start(t)
}

// TestCheckLeak: one line in a workflow fails for a leak, at its line, and passes for the repaired twin.
func TestCheckLeak(t *testing.T) {
	leaky := runCheck(t, []string{"--no-leaks", "--max-growth-per-step", "0", "--no-oom"}, nil, training("--pattern", "3")...)
	require.Equal(t, 4, leaky.code(t), leaky.stderr.String())
	text := leaky.stderr.String()
	require.Contains(t, text, "FAILED   no-leaks: growing: leaks_patterns.py:")
	require.Contains(t, text, "FAILED   max-growth-per-step: memory grows by 48.0 KiB each step, 48.0 KiB above the limit of 0 B\n")
	require.Contains(t, text, "passed   no-oom: no request was refused\n")
	require.Contains(t, text, "passed   command: exit code 0\n")
	require.Contains(t, text, "check failed: 2 of 4 rules not met\n")
	require.NotContains(t, leaky.stdout.String(), "check", "standard output is the program's")

	fixed := runCheck(t, []string{"--no-leaks", "--max-growth-per-step", "0", "--no-oom"}, nil, training("--pattern", "3", "--fixed")...)
	require.Equal(t, 0, fixed.code(t), fixed.stderr.String())
	require.Contains(t, fixed.stderr.String(), "check passed: 4 rules\n")

	out, code := checked(t, leaky.out(), "--baseline", fixed.out())
	require.Equal(t, 4, code, out)
	require.Regexp(t, `FAILED   baseline: leaks_patterns.py:\d+ kept_inputs: 1.4 MiB at the peak, none\s+in the baseline`, out)
	out, code = checked(t, fixed.out(), "--baseline", leaky.out(), "--tolerance", "0%")
	require.Equal(t, 0, code, out)
	out, code = checked(t, leaky.out(), "--baseline", filepath.Join(fixed.out(), "peak.pb.gz"))
	require.Equal(t, 4, code, out)
}

// checked is the outcome of gputrace check.
func checked(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(env.binary, append([]string{"check"}, args...)...)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// TestCheckPeak: the peak of the rule is torch.cuda.max_memory_allocated, to the byte.
func TestCheckPeak(t *testing.T) {
	code := `
import torch
kept = torch.empty(3 << 20, device='cuda')
torch.empty(50 << 20, device='cuda')
print('PEAK', torch.cuda.max_memory_allocated(), flush=True)
`
	c := runCheck(t, []string{"--max-peak", "1GiB"}, nil, filepath.Join(env.testdata, "run"), "-c", code)
	require.Equal(t, 0, c.code(t), c.stderr.String())
	peak := strings.TrimPrefix(strings.TrimSpace(c.stdout.String()), "PEAK ")
	out, status := checked(t, c.out(), "--max-peak", peak)
	require.Equal(t, 0, status, out)
	n := 0
	for _, digit := range peak {
		n = 10*n + int(digit-'0')
	}
	out, status = checked(t, c.out(), "--max-peak", itoa(n-1))
	require.Equal(t, 4, status, out)
	require.Contains(t, strings.Join(strings.Fields(out), " "), "1 B above the limit of")
	require.Contains(t, out, "<string>:4 <module>")
}

// TestCheckOutOfMemory: a request that is refused fails the rule with the line that asked, though the program goes on; and a program that
// fails keeps its own exit code, with what the rules say printed and in the file for CI.
func TestCheckOutOfMemory(t *testing.T) {
	code := `
import sys, torch
try:
    torch.empty(3 << 30, device='cuda')
except torch.cuda.OutOfMemoryError:
    pass
sys.exit(int(sys.argv[1]))
`
	for _, tt := range []struct {
		exit string
		code int
	}{{"0", 4}, {"9", 9}} {
		file := filepath.Join(t.TempDir(), "memory.xml")
		c := runCheck(t, []string{"--no-oom", "--junit", file}, []string{"STANDIN_GPU_MEM=2GiB"}, filepath.Join(env.testdata, "run"), "-c",
			code, tt.exit)
		require.Equal(t, tt.code, c.code(t), c.stderr.String())
		require.Contains(t, c.stderr.String(), "FAILED   no-oom: 1 request refused\n         out of memory: 12.0 GiB on cuda:0, asked for by "+
			"<string>:4 <module>\n")
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		var suites struct {
			Failures int `xml:"failures,attr"`
		}
		require.NoError(t, xml.Unmarshal(b, &suites))
		require.Equal(t, map[string]int{"0": 1, "9": 2}[tt.exit], suites.Failures, string(b))
	}
}

// TestCheckNoMemory: of a program that uses no GPU nothing can be said, and the gate does not pass.
func TestCheckNoMemory(t *testing.T) {
	c := runCheck(t, []string{"--no-leaks", "--max-peak", "1GiB"}, nil, "/bin/true")
	require.Equal(t, 4, c.code(t), c.stderr.String())
	require.Contains(t, c.stderr.String(), "UNKNOWN  max-peak: no use of GPU memory was recorded\n")
	require.Contains(t, c.stderr.String(), "UNKNOWN  no-leaks: no use of GPU memory was recorded\n")
}
