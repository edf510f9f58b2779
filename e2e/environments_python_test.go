// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// embeddedTorch allocates 60 MiB through PyTorch.
	embeddedTorch = `import torch
kept = []
def grow():
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device='cuda'))
for _ in range(60):
    grow()
`
	// embeddedTake allocates 40 MiB through the driver, with modules that are built in.
	embeddedTake = `import time
def other():
    take()
for _ in range(40):
    time.sleep(0.005)
    other()
`
)

// embedding is a program that embeds Python.
type embedding struct {
	*target
	scripts int
}

// startEmbedding starts the program without a Python. PyTorch can be imported from its Python.
func startEmbedding(t *testing.T, packages string) *embedding {
	t.Helper()
	dir := t.TempDir()
	variables := []string{"RUN_PROGRAM=" + filepath.Join(env.programs, "embeds"), "PYTHONPATH=" + packages}
	p := &embedding{target: startIn(t, dir, variables, filepath.Join(env.testdata, "run"), dir)}
	p.await(t, "READY")
	return p
}

// script runs a script in the interpreter of a library to its end.
func (p *embedding) script(t *testing.T, scope, library, script string) {
	t.Helper()
	file := filepath.Join(p.dir, fmt.Sprint("python.", p.scripts))
	require.NoError(t, os.WriteFile(file+".part", []byte(scope+"\n"+library+"\n"+script), 0o600))
	require.NoError(t, os.Rename(file+".part", file))
	p.await(t, fmt.Sprint("RAN ", p.scripts))
	p.scripts++
}

// pythonPaths returns the shared library of an interpreter, and its folder of packages.
func pythonPaths(t *testing.T, interpreter string) (library, packages string) {
	t.Helper()
	const ask = "import sysconfig as s; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME'), s.get_path('purelib'))"
	text, err := output(interpreter, "-c", ask)
	require.NoError(t, err)
	_, err = fmt.Sscan(text, &library, &packages)
	require.NoError(t, err)
	require.FileExists(t, library)
	return library, packages
}

// TestPythonLater: a program loads Python, or a second one, after the attach. Lines and holders come from the Python to which PyTorch is
// bound; other lines are not known, with the reason.
func TestPythonLater(t *testing.T) {
	interpreter, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	library, packages := pythonPaths(t, interpreter)
	other, _ := pythonPaths(t, python(t, "3.13"))
	t.Run("first", func(t *testing.T) {
		p := startEmbedding(t, packages)
		c := startCommand(t, p.target)
		p.script(t, "global", library, embeddedTorch)
		c.interrupt(t)
		inuse, _ := c.profiles(t)
		bytes, _ := leaf(inuse, "<string>:4 grow")
		require.EqualValues(t, 60<<20, bytes)
		require.Regexp(t, `kept\[0\.\.59\] +60\.0 MiB +100 %`, c.stdout.String())
	})
	t.Run("second", func(t *testing.T) {
		p := startEmbedding(t, packages)
		p.script(t, "local", other, "pass\n")
		c := startCommand(t, p.target)
		p.script(t, "local", other, embeddedTake)
		p.script(t, "global", library, embeddedTorch)
		p.script(t, "local", other, embeddedTake)
		c.interrupt(t)
		inuse, _ := c.profiles(t)
		for line, mib := range map[string]int64{
			"<string>:4 grow": 60, "<string>:3 other": 40, "<line not known: another Python ran it, " + filepath.Base(other) + ">": 40,
		} {
			bytes, _ := leaf(inuse, line)
			require.Equal(t, mib<<20, bytes, line)
		}
		require.Regexp(t, `kept\[0\.\.59\] +60\.0 MiB +43 %`, c.stdout.String())
	})
}
