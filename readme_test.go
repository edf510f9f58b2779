// SPDX-License-Identifier: Apache-2.0

package gputrace_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pages are those whose commands are run, in this order, in one folder: README.md makes the recording that the guides look at.
func pages(t *testing.T) []string {
	t.Helper()
	guides, err := filepath.Glob("docs/use/guides/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, guides)
	return append([]string{"README.md", "CONTRIBUTING.md"}, guides...)
}

// byCI are the commands of the pages that .ci/run runs itself: inside a test they would start this very test again, or take
// minutes.
var byCI = []string{"make build", "make demo", "make test", "make unit"}

// expected is what a command of the pages must print, by words in it: the first row counts.
var expected = []struct{ command, stdout string }{
	{"gputrace -p", "wrote "},
	{"gputrace report result --at peak --by function", "live by function"},
	{"gputrace report pieces --at end --by stack", "live by stack"},
	{"gputrace report traffic --by function", "live by function"},
	{"gputrace report result --at peak", "live by line"},
	{"gputrace leaks", "STEADY  nothing grew"},
	{"gputrace check", "check passed: 2 rules"},
	{"gputrace export", ""}, // says on standard error what it wrote
	{"gputrace diff", "in use by Python line"},
	{"gputrace doctor", "tracing will work: gputrace -p "},
	{"gputrace dump -p PID -f snapshot", ""}, // into a file
	{"gputrace dump", "reserved"},
	{"gputrace who -p PID --by category", "category"},
	{"gputrace who", "live by holder"},
	{"go tool pprof", "Showing nodes accounting for "},
}

const deadline = 3 * time.Minute

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

var consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// commands are the lines of a page's console blocks: all that it tells a reader to type.
func commands(t *testing.T, page string) []string {
	t.Helper()
	var out []string
	for _, block := range consoleBlock.FindAllStringSubmatch(read(t, page), -1) {
		out = append(out, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return out
}

// TestReadmeCommands runs every command of the README and the guides once as it is written there, against a training script on the
// stand-in. Only PID, sudo, the binary's place and the length of recordings differ that no page looks into by the second.
func TestReadmeCommands(t *testing.T) {
	dir := t.TempDir()
	run(t, ".", "go", "build", "-o", filepath.Join(dir, "gputrace"), "./cmd/gputrace")
	pid := strconv.Itoa(startJob(t, dir))
	seen, ran := map[string]bool{}, map[string]bool{}
	for _, page := range pages(t) {
		for _, command := range commands(t, page) {
			if isMake(t, command) {
				continue
			}
			words, stdout := want(t, command)
			seen[words] = true
			if ran[command] {
				continue
			}
			ran[command] = true
			if out := run(t, dir, typed(dir, command, pid)...); !strings.Contains(out, stdout) {
				t.Errorf("%s: %s does not print %q:\n%.2000s", page, command, stdout, out)
			}
		}
	}
	require.Len(t, seen, len(expected), "kinds of commands in the pages")
	for _, name := range []string{"result/report.html", "result/timeline.pftrace.gz", "result/memory.png", "result/allocations.parquet",
		"map.pickle"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
}

// typed are the words of a command for a process and the program in a folder.
func typed(dir, command, pid string) []string {
	for _, name := range []string{"pieces", "cell", "traffic"} {
		command = strings.Replace(command, "-d 10s -o "+name, "-d 2s -o "+name, 1)
	}
	words := strings.Fields(strings.TrimPrefix(strings.ReplaceAll(command, "PID", pid), "sudo "))
	if words[0] == "./gputrace" {
		words[0] = filepath.Join(dir, "gputrace")
	}
	return words
}

// isMake checks a command that is not run here: CI runs it, or the workflow of each push.
func isMake(t *testing.T, command string) bool {
	t.Helper()
	if !strings.HasPrefix(command, "make ") {
		return false
	}
	require.Contains(t, byCI, command)
	hosted := read(t, ".github/workflows/check.yml")
	if !strings.Contains(hosted, "run: "+command+"\n") {
		require.Contains(t, read(t, ".ci/run"), "\nstep "+command+"\n")
	}
	return true
}

// want returns the row of a command: its words, and what the command must print.
func want(t *testing.T, command string) (words, stdout string) {
	t.Helper()
	for _, e := range expected {
		if strings.Contains(command, e.command) {
			return e.command, e.stdout
		}
	}
	require.Fail(t, "no test for this command", command)
	return "", ""
}

// run returns what a command prints to stdout. It must succeed.
func run(t *testing.T, dir string, words ...string) string {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s\n%s%s", strings.Join(words, " "), &stdout, &stderr)
	require.NotContains(t, stderr.String(), "warning", strings.Join(words, " "))
	return stdout.String()
}

// startJob starts a training script, waits until it has trained a few steps and returns its PID. It ends with the test.
func startJob(t *testing.T, dir string) int {
	t.Helper()
	counters := filepath.Join(dir, "counters")
	var output bytes.Buffer
	cmd := exec.Command("testdata/run", "testdata/workloads/mlp.py", "--steps", "0", "--counters", counters)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(counters); err == nil && bytes.Count(b, []byte("\n")) > 5 {
			return cmd.Process.Pid
		}
		select {
		case err := <-ended:
			ended <- err
			require.Fail(t, "the training script ended", "%v\n%s", err, &output)
		default:
		}
	}
	require.Fail(t, "the training script did not start", "in %s\n%s", deadline, &output)
	return 0
}

// TestMakeHelp: each target of the Makefile is explained.
func TestMakeHelp(t *testing.T) {
	help := run(t, ".", "make", "--no-print-directory", "help")
	targets := regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1)
	require.NotEmpty(t, targets)
	for _, m := range targets {
		require.Regexp(t, `(?m)^`+m[1]+`\s+\S+`, help)
	}
}
