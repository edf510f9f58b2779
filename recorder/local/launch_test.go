// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/elftest"
	"github.com/gputrace/gputrace/recorder"
)

// starter is the argument with which the test's own program is the starter.
const starter = "become-the-program"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == starter {
		err := Become(os.Args[2:])
		if errors.Is(err, ErrAbandoned) {
			os.Exit(91)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(92)
	}
	os.Exit(m.Run())
}

// launch starts a command as run does.
func launch(t *testing.T, command ...string) (*live, *madeTracer, *observer) {
	t.Helper()
	l, m, seen := openMade(t, &recorder.Options{Command: command, Starter: []string{starter}, Version: "1.2.3", Memory: "auto"})
	require.NoError(t, l.Start(t.Context()))
	return l, m, seen
}

// TestLaunch: the program is known to the tracer before it runs, gets its arguments, and its exit code is what a shell would say.
func TestLaunch(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	l, m, seen := launch(t, "sh", "-c", `echo "$0 $1 $$" > "$2"; exit 7`, "zero", "one two", file)
	code, started := l.Wait()
	require.True(t, started)
	require.Equal(t, 7, code)
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	pid := l.program.Load().cmd.Process.Pid
	require.Equal(t, fmt.Sprintf("zero one two %d\n", pid), string(written), "the starter has become it")

	require.Equal(t, "ready", m.calls[0])
	require.Equal(t, fmt.Sprint("expect ", pid), m.calls[len(m.calls)-1])
	require.True(t, m.options.Job)
	require.EqualValues(t, forResults, m.rights)
	require.Empty(t, seen.warnings)
	require.Len(t, seen.notices, 1)
	require.Regexp(t, fmt.Sprintf(`^gputrace 1\.2\.3 · pid %d sh -c .* · Linux \d`, pid), seen.notices[0])
}

// TestLaunchHooks: what the program is linked with is hooked before it runs, and its dynamic linker with it. A file that cannot be hooked
// is a warning.
func TestLaunchHooks(t *testing.T) {
	t.Parallel()
	library := filepath.Join(t.TempDir(), "libcudart.so.12")
	built, err := os.ReadFile(elftest.Build(t, "code.c", "int five(void) { return 5; }"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(library, built, 0o755))
	dir := filepath.Dir(library)
	byName, byPath := linked(t, "-L"+dir, "-l:libcudart.so.12", "-Wl,-rpath,"+dir), linked(t, library)
	linker := linkerOf(t, byName)
	require.Equal(t, []string{linker, library}, linkedFiles(byName, &identity{}))
	require.Equal(t, []string{linker, library}, linkedFiles(byPath, &identity{}))
	require.Empty(t, linkedFiles(library, &identity{}), "a library has no dynamic linker")
	require.Empty(t, linkedFiles(filepath.Join(dir, "none"), &identity{}))
	script := filepath.Join(dir, "script")
	writeProgram(t, script, []byte("#!/bin/sh\nexit 3\n"))
	require.Empty(t, linkedFiles(script, &identity{}))

	l, m, seen := openMade(t, &recorder.Options{Command: []string{byName}, Starter: []string{starter}, Memory: "auto"})
	m.hookErr = errors.New("no such instruction")
	require.NoError(t, l.Start(t.Context()))
	require.Equal(t, []string{"ready", "hook " + linker, "hook " + library}, m.calls[:3])
	require.Equal(t, []error{m.hookErr, m.hookErr}, seen.warnings[:2])
	code, _ := l.Wait()
	require.Equal(t, 5, code)
}

// linked compiles a program that is linked with a library, by the given flags, and ends with what that returns.
func linked(t *testing.T, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "main.c"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(source, []byte("int five(void); int main(void) { return five(); }"), 0o600))
	out, err := exec.Command("gcc", append([]string{"-o", path, source}, flags...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

// linkerOf is a program's dynamic linker, as readelf says.
func linkerOf(t *testing.T, path string) string {
	t.Helper()
	_, linker, found := strings.Cut(elftest.Output(t, "readelf", "-l", path), "Requesting program interpreter: ")
	require.True(t, found)
	linker, _, _ = strings.Cut(linker, "]")
	return linker
}

// TestLoadedFiles: the driver that a program will load by name is looked for where the dynamic linker would.
func TestLoadedFiles(t *testing.T) {
	t.Parallel()
	empty, full, later := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{full, later} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), nil, 0o600))
	}
	path := strings.Join([]string{"", "relative", empty, full, later}, string(filepath.ListSeparator))
	require.Equal(t, []string{filepath.Join(full, "libcuda.so.1")}, loadedFiles(path))
	require.Empty(t, inFolders([]string{empty}, "libcuda.so.1"))
	require.Empty(t, inFolders([]string{full}, "libother.so"), "not of the hook table")
	for _, file := range loadedFiles("") {
		require.FileExists(t, file)
		require.Equal(t, "libcuda.so.1", filepath.Base(file))
	}
}

// TestLaunchNone: a program that is not there, is not executable, or that the tracer has no place for.
func TestLaunchNone(t *testing.T) {
	t.Parallel()
	l, _, _ := openMade(t, &recorder.Options{Command: []string{"no-such-program"}, Starter: []string{starter}, Memory: "auto"})
	var launched *recorder.LaunchError
	require.ErrorAs(t, l.Start(t.Context()), &launched)
	require.ErrorIs(t, launched, exec.ErrNotFound)
	_, started := l.Wait()
	require.False(t, started)
	require.False(t, l.Signal(os.Interrupt), "a signal is for gputrace alone")

	file := filepath.Join(t.TempDir(), "ran")
	l, m, _ := openMade(t, &recorder.Options{Command: []string{"sh", "-c", `echo > "$0"`, file}, Starter: []string{starter}, Memory: "auto"})
	m.unexpected = errors.New("no place")
	var attach *recorder.AttachError
	require.ErrorAs(t, l.Start(t.Context()), &attach)
	require.ErrorIs(t, attach, m.unexpected)
	require.NoFileExists(t, file, "the program did not run")
	_, started = l.Wait()
	require.False(t, started)

	notProgram := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(notProgram, []byte("no program"), 0o755))
	l, _, _ = launch(t, notProgram)
	code, started := l.Wait()
	require.True(t, started)
	require.Equal(t, 92, code, "Become says why")
}

// TestAbandoned: a starter whose gputrace ends before the release runs nothing.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ran")
	p, err := newProgram("/bin/sh", []string{"sh", "-c", `echo > "$0"`, file}, []string{starter}, &identity{})
	require.NoError(t, err)
	require.NoError(t, p.gate.Close())
	<-p.done
	require.Equal(t, 91, p.cmd.ProcessState.ExitCode())
	require.NoFileExists(t, file)

	p, err = newProgram("/bin/sh", nil, []string{starter}, &identity{}) // a path without a name
	require.NoError(t, err)
	require.NoError(t, p.release())
	<-p.done
	require.Equal(t, 91, p.cmd.ProcessState.ExitCode())
}

// TestSignalOfStarter: a signal that comes while the starter waits is the program's, and does not end the starter.
func TestSignalOfStarter(t *testing.T) {
	t.Parallel()
	l := &live{options: &recorder.Options{Command: []string{"sleep", "600"}}}
	p, err := newProgram("/bin/sleep", l.options.Command, []string{starter}, &identity{env: os.Environ()})
	require.NoError(t, err)
	l.program.Store(p)
	require.True(t, l.Signal(syscall.SIGTERM))
	time.Sleep(100 * time.Millisecond)
	select {
	case <-p.done:
		t.Fatal("the starter has ended")
	default:
	}
	require.NotNil(t, l.early.Load())
	require.NoError(t, p.release())
	require.True(t, l.Signal(syscall.SIGTERM))
	require.True(t, p.signaled())
}

// TestSignal: the program gets the signals that gputrace gets, and one that it ends by shows in the exit code.
func TestSignal(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		l, _, _ := launch(t, "sleep", "600")
		pid := l.program.Load().cmd.Process.Pid
		require.Eventually(t, func() bool { // before, the signal would be the starter's
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return string(name) == "sleep\n"
		}, time.Minute, time.Millisecond)
		require.True(t, l.Signal(s))
		code, started := l.Wait()
		require.True(t, started)
		require.Equal(t, 128+int(s), code)
		require.True(t, l.Signal(s), "there was one")
	}
}
