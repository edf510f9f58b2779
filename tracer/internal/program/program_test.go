// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package program

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// TestEnded tells a program that a signal ends from one that ends by itself.
func TestEnded(t *testing.T) {
	for script, ended := range map[string]bool{"read x; kill -SEGV $$": true, "read x; kill -KILL $$": true, "exit 3": false, "": false} {
		o, err := Start("/bin/sh", "-c", script)
		require.NoError(t, err)
		require.Equal(t, ended, errors.Is(o.Step('\n'), ErrEnded), script)
		o.Close()
	}
}

// TestFilter: the program forbids itself what a container's runtime does not know, and answers.
func TestFilter(t *testing.T) {
	for _, filtered := range []bool{false, true} {
		_, p := startAs(t, Driver, filtered)
		got, err := p.Filtered()
		require.NoError(t, err)
		require.Equal(t, filtered, got)
	}
}

// startAs starts the program under the name of a library.
func startAs(t *testing.T, name string, filtered bool) (*Program, *process.Process) {
	t.Helper()
	dir, err := Place(Image, name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := []string{"filtered"}
	if !filtered {
		args = nil
	}
	o, err := Start(filepath.Join(dir, name), args...)
	require.NoError(t, err)
	t.Cleanup(o.Close)
	require.NoError(t, o.Step(1))
	p, err := process.Open(o.PID())
	require.NoError(t, err)
	return o, p
}

// TestImage: the committed program is what its source makes, up to where the linker puts its parts.
func TestImage(t *testing.T) {
	made := filepath.Join(t.TempDir(), "program.elf")
	out, err := exec.Command("gcc", "-shared", "-nostdlib",
		"-Wl,-Bsymbolic,-z,noseparate-code,-z,norelro,--hash-style=sysv,--build-id=none,-e,_start",
		"-o", made, "image/program.S").CombinedOutput()
	require.NoError(t, err, "%s", out)
	image, err := os.ReadFile(made)
	require.NoError(t, err)
	require.Equal(t, textOf(t, image), textOf(t, Image))
}

// textOf is the code of an image, and where in it the symbols are.
func textOf(t *testing.T, image []byte) map[string]string {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	text := f.Section(".text")
	code, err := text.Data()
	require.NoError(t, err)
	out := map[string]string{"code": string(code)}
	symbols, err := f.Symbols()
	require.NoError(t, err)
	for i, s := range symbols {
		if s.Section != elf.SectionIndex(0) && int(s.Section) < len(f.Sections) && f.Sections[s.Section] == text {
			out[fmt.Sprint(i, s.Name)] = fmt.Sprint(s.Value - text.Addr)
		}
	}
	return out
}

// TestSweep: the folder of a process that was killed is removed by the next one, those of living processes and of
// others stay; what was placed is removed when the process gives up.
func TestSweep(t *testing.T) {
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	gone := exec.Command("/bin/true")
	require.NoError(t, gone.Run())
	old := time.Now().Add(-time.Hour)
	kept := []string{fmt.Sprintf("gputrace-self-%d-1", os.Getpid()), "gputrace-self-x", "other"}
	for _, name := range append([]string{fmt.Sprintf("gputrace-self-%d-7", gone.Process.Pid)}, kept...) {
		require.NoError(t, os.Mkdir(filepath.Join(parent, name), 0o755))
		require.NoError(t, os.Chtimes(filepath.Join(parent, name), old, old))
	}
	dir, err := Place(Image, Torch)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, Torch))
	Abandon()
	var names []string
	left, err := os.ReadDir(parent)
	require.NoError(t, err)
	for _, d := range left {
		names = append(names, d.Name())
	}
	require.ElementsMatch(t, kept, names)
}
