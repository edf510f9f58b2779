// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timeout bounds every wait for an event. It passes only when something is broken. GPUTRACE_TIMEOUT is one for a slow machine, such as an
// emulated one: a duration as 10m.
var timeout = 3 * time.Minute

// env is what all tests share.
var env struct {
	binary   string // gputrace, built from this tree
	testdata string
	programs string // folder of the C programs
	cache    string // unwind tables, kept between tests
}

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	if err := os.Setenv("COLUMNS", "120"); err != nil { // rows of tables are one line each
		return 1, fmt.Errorf("set COLUMNS: %w", err)
	}
	if os.Geteuid() != 0 {
		return 1, fmt.Errorf("attaching needs root: run the tests with sudo")
	}
	if v := os.Getenv("GPUTRACE_TIMEOUT"); v != "" {
		var err error
		if timeout, err = time.ParseDuration(v); err != nil {
			return 1, fmt.Errorf("GPUTRACE_TIMEOUT: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "gputrace-e2e-")
	if err != nil {
		return 1, fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs the binary in one test
		return 1, fmt.Errorf("open the folder: %w", err)
	}
	if env.testdata, err = filepath.Abs("../testdata"); err != nil {
		return 1, fmt.Errorf("find testdata: %w", err)
	}
	env.binary, env.cache = filepath.Join(dir, "gputrace"), filepath.Join(dir, "cache")
	if _, err := output("go", "build", "-o", env.binary, "../cmd/gputrace"); err != nil {
		return 1, err
	}
	if env.programs, err = output(filepath.Join(env.testdata, "setup.sh"), "--print", "programs"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// output runs a command that must succeed.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		var said []byte
		if e, ok := err.(*exec.ExitError); ok {
			said = e.Stderr
		}
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said)
	}
	return strings.TrimSpace(string(out)), nil
}

// eventually waits for a condition outside this process that nothing announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(t, "timed out waiting for "+what)
		}
	}
}

func workload(name string) string { return filepath.Join(env.testdata, "workloads", name) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
