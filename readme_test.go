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

// byCI are the commands of the README that .ci/run runs itself: inside a test they would start this very test again, or take
// minutes.
var byCI = []string{"make build", "make demo", "make test"}

// expected is what the first words of a command of the README must print.
var expected = []struct{ command, stdout string }{
	{"gputrace -p", "wrote result/"},
	{"gputrace report result/trace.gputrace --at peak", "live by function"},
	{"gputrace report", "allocator totals continuous"},
	{"gputrace export", ""}, // says on standard error what it wrote
	{"gputrace diff", "in use by Python line"},
	{"gputrace doctor", "tracing will work: gputrace -p "},
	{"gputrace dump", "reserved"},
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

// commands are the lines of the README's console blocks: all that it tells a reader to type.
func commands(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, block := range consoleBlock.FindAllStringSubmatch(read(t, "README.md"), -1) {
		out = append(out, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return out
}

// TestReadmeCommands runs every command of the README as it is printed there, against a training script on the stand-in. Only
// PID, sudo and the binary's place differ.
func TestReadmeCommands(t *testing.T) {
	dir := t.TempDir()
	run(t, ".", "go", "build", "-o", filepath.Join(dir, "gputrace"), "./cmd/gputrace")
	pid := strconv.Itoa(startJob(t, dir))
	seen := map[string]bool{}
	for _, command := range commands(t) {
		if isMake(t, command) {
			continue
		}
		seen[want(t, command)] = true
		words := strings.Fields(strings.TrimPrefix(strings.ReplaceAll(command, "PID", pid), "sudo "))
		if words[0] == "./gputrace" {
			words[0] = filepath.Join(dir, "gputrace")
		}
		if out := run(t, dir, words...); !strings.Contains(out, want(t, command)) {
			t.Errorf("%s does not print %q:\n%.2000s", command, want(t, command), out)
		}
	}
	require.Len(t, seen, len(expected), "kinds of commands in the README")
	for _, name := range []string{"report.html", "timeline.pftrace.gz", "memory.png", "allocations.parquet"} {
		require.FileExists(t, filepath.Join(dir, "result", name))
	}
}

// isMake checks a command that is not run here: CI runs it.
func isMake(t *testing.T, command string) bool {
	t.Helper()
	if !strings.HasPrefix(command, "make ") {
		return false
	}
	require.Contains(t, byCI, command)
	require.Contains(t, read(t, ".ci/run"), "\nstep "+command+"\n")
	return true
}

func want(t *testing.T, command string) string {
	t.Helper()
	for _, e := range expected {
		if strings.Contains(command, e.command) {
			return e.stdout
		}
	}
	require.Fail(t, "no test for this command of the README", command)
	return ""
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

var (
	makeTarget = regexp.MustCompile("`make ([a-z]+)`")
	link       = regexp.MustCompile(`\]\(([^)#:]+)\)`)
)

// TestDocumentation: the make targets and files that pages mention exist.
func TestDocumentation(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	pages = append(pages, "README.md")
	require.Greater(t, len(pages), 5)
	makefile := read(t, "Makefile")
	for _, page := range pages {
		text := read(t, page)
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			require.Contains(t, makefile, "\n"+m[1]+": ", "%s: make %s", page, m[1])
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			require.FileExists(t, filepath.Join(filepath.Dir(page), m[1]), page)
		}
	}
}

// TestMakeHelp: each target of the Makefile is explained.
func TestMakeHelp(t *testing.T) {
	help := run(t, ".", "make", "--no-print-directory", "help")
	targets := regexp.MustCompile(`(?m)^([a-z]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1)
	require.NotEmpty(t, targets)
	for _, m := range targets {
		require.Regexp(t, `(?m)^`+m[1]+`\s+\S+`, help)
	}
}
