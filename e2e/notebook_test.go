// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNotebook: lines of a kernel's cells are called by the cell's number, which the kernel itself says in its reply, and have their
// text: while the kernel runs, and in the recording when it has ended.
func TestNotebook(t *testing.T) {
	p, kernel := startNotebook(t)
	c := newCommand(t, "-p", strconv.Itoa(kernel), "-o", "OUT").start(t).ready(t)
	p.touch(t, "go")
	p.await(t, "TRAINING")
	eventually(t, "the live line that names the cell", func() bool { return strings.Contains(c.stderr.String(), "growing: In[3]:") })
	table, stderr, code := who(t, kernel)
	require.Zero(t, code, stderr)
	require.Regexp(t, `scratch +In\[5\]:[45] train\(\)`, table, "the line at which the function stands, of two")
	c.interrupt(t)
	p.signal(t, syscall.SIGKILL)
	require.NoError(t, syscall.Kill(kernel, syscall.SIGKILL))

	path := filepath.Join(c.out(), traceFile)
	f := leaksIn(t, path).Findings[0]
	require.Equal(t, "In[3]", f.File)
	line := map[int]string{2: `x = torch.randn(64, 1024, device="cuda")`, 3: "loss = (model(x) - x).square().mean()"}[f.Line] // of notebook.py

	first := firstLines(t, path)
	require.Regexp(t, `GROWING In\[3\]:`+strconv.Itoa(f.Line)+` step (and 1 other line keep|keeps) `, first)
	require.NotEmpty(t, line, "line %d", f.Line)
	require.Contains(t, first, line)
	require.Contains(t, first, "losses[")
	verbose, _ := report(t, path)
	require.Contains(t, verbose, "In[4]:1 <module>")
	require.NotContains(t, verbose, "/ipykernel_")
}

// startNotebook starts a kernel of ipykernel, and what gives it cells when the folder of p has a file go. It gives the kernel's PID.
func startNotebook(t *testing.T) (p *target, kernel int) {
	t.Helper()
	dir := t.TempDir()
	p = startIn(t, dir, []string{"PYTHONPATH=" + installed(t, "ipykernel==7.4.0"), "IPYTHONDIR=" + dir, "JUPYTER_RUNTIME_DIR=" + dir},
		filepath.Join(env.testdata, "run"), workload("notebook.py"), filepath.Join(dir, "go"))
	kernel, err := strconv.Atoi(strings.TrimPrefix(p.await(t, "KERNEL "), "KERNEL "))
	require.NoError(t, err)
	return p, kernel
}

// firstLines is the first ten lines of report, with single spaces: a sentence can go on in the next line.
func firstLines(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(env.binary, "report", path).Output()
	require.NoError(t, err)
	lines := strings.Split(string(out), "\n")
	return strings.Join(strings.Fields(strings.Join(lines[:min(10, len(lines))], " ")), " ")
}

// TestMagics: %gputrace shows what holds the memory of the kernel itself, %%gputrace what a cell kept and let go of.
func TestMagics(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(env.testdata, "run"), workload("magics.py"))
	cmd.Env = append(os.Environ(), "GPUTRACE="+env.binary, "IPYTHONDIR="+dir,
		"PYTHONPATH="+filepath.Join(env.testdata, "..", "release", "python")+":"+installed(t, "ipykernel==7.4.0"))
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, talk.String())
	var cells []struct{ Printed, HTML, Error string }
	for line := range strings.Lines(string(out)) {
		cells = append(cells, struct{ Printed, HTML, Error string }{})
		require.NoError(t, json.Unmarshal([]byte(line), &cells[len(cells)-1]), line)
	}
	require.Len(t, cells, 9)
	require.Contains(t, cells[1].Printed, "0 B of GPU memory are in use", "before PyTorch used the device")
	for i := range cells {
		want := map[int]string{6: "gputrace takes no arguments: now", 7: "kept"}[i]
		require.Equal(t, want, cells[i].Error, "cell %d", i)
	}
	require.Regexp(t, `this cell changed the GPU memory in use by \+8\.0 MiB\n.*\nlosses\[0\.\.7\] +other tensors +\+8\.0 MiB +\+8\n$`,
		cells[3].Printed)
	require.Regexp(t, `by -8\.0 MiB\n.*\nlosses\[0\.\.7\] +other tensors +-8\.0 MiB +-8\n$`, cells[4].Printed)
	require.Regexp(t, `1\.0 MiB of GPU memory are in use\n.*\nmodel\.\* +parameters +1\.0 MiB +2\n$`, cells[5].Printed)
	require.Contains(t, cells[5].HTML, "<code>model.*</code></td><td style='text-align:left'>parameters</td><td>1.0 MiB</td><td>2</td>")
	require.Equal(t, 1, strings.Count(cells[7].Printed, "Traceback (most recent"), "shown once")
	require.Regexp(t, `by \+1\.0 MiB\n.*\nlosses\[0\] +other tensors +\+1\.0 MiB +\+1\n$`, cells[7].Printed, "of a cell that failed")
	require.Regexp(t, `Wall time(?s:.*)by -1\.0 MiB\n.*\nlosses\[0\] +other tensors +-1\.0 MiB +-1\n$`, cells[8].Printed)
}
