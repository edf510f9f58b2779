// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cells

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// shell has what IPython has, where IPython has it.
const shell = `
import linecache, sys, types
class Configurable:
    _instance = None
class InteractiveShell(Configurable):
    def __init__(self):
        self.other, self.compile = {}, types.SimpleNamespace(flags=0, _filename_map={})
class Kernel(InteractiveShell):
    pass
InteractiveShell._instance = Kernel._instance = Kernel()
for name in ("IPython", "IPython.core", "IPython.core.interactiveshell"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["IPython.core.interactiveshell"].InteractiveShell = InteractiveShell
def cell(number, file, text):
    InteractiveShell._instance.compile._filename_map[file] = number
    linecache.cache[file] = (len(text), None, [line + "\n" for line in text.splitlines()], file)
linecache.getline(linecache.__file__, 1)
for n in range(1, 200):
    cell(n, "/tmp/ipykernel_7/%d.py" % (n * 1000), "x = %d" % n)
cell(14, "/tmp/ipykernel_7/14000.py", "# ä €\nfor x in range(3):\n    keep(x)\n")
cell(3, "<ipython-input-3-0123456789ab>", "y = 1")
linecache.cache["/tmp/ipykernel_7/1.py"] = (2, None, ["z\n"], "/tmp/ipykernel_7/1.py")
print(flush=True)
sys.stdin.read()
`

// TestCells: the number and the text of a cell are those that each version of CPython was given.
func TestCells(t *testing.T) {
	root := os.Getenv("PYENV_ROOT")
	if root == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		root = filepath.Join(home, ".pyenv")
	}
	for _, version := range []string{"3.8", "3.9", "3.10", "3.11", "3.12", "3.13"} {
		t.Run(version, func(t *testing.T) {
			pythons, err := filepath.Glob(filepath.Join(root, "versions", version+".*", "bin", "python"+version))
			require.NoError(t, err)
			if len(pythons) == 0 {
				if os.Getenv("CI") != "" {
					t.Fatalf("python %s must be installed with pyenv", version)
				}
				t.Skipf("python %s is not installed with pyenv", version)
			}
			checkCells(t, NewReader(start(t, pythons[0])))
		})
	}
}

func checkCells(t *testing.T, r *Reader) {
	t.Helper()
	for _, c := range []struct{ file, name, text string }{
		{"/tmp/ipykernel_7/14000.py", "In[14]", "# ä €\nfor x in range(3):\n    keep(x)\n"},
		{"/tmp/ipykernel_7/199000.py", "In[199]", "x = 199\n"},
		{"<ipython-input-3-0123456789ab>", "In[3]", "y = 1\n"},
		{"<ipython-input-12-ffffffffffff>", "In[12]", ""}, // not in the shell any more
		{"/tmp/ipykernel_7/1.py", "/tmp/ipykernel_7/1.py", "z\n"},
		{"/tmp/ipykernel_7/2.py", "/tmp/ipykernel_7/2.py", ""},
		{"/home/me/train.py", "/home/me/train.py", ""},
	} {
		require.Equal(t, c.name, r.Name(c.file), c.file)
		text, ok := r.Text(c.name)
		require.Equal(t, c.text, text, c.file)
		require.Equal(t, c.text != "", ok, c.file)
	}
}

// TestNoInterpreter: of a process without Python only what the name of the file says is known, and nothing is read for a file.
func TestNoInterpreter(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	r := NewReader(p)
	require.Equal(t, "train.py", r.Name("train.py"))
	require.False(t, r.sought)
	require.Equal(t, "In[3]", r.Name("<ipython-input-3-0123456789ab>"))
	require.Equal(t, "/tmp/ipykernel_7/1.py", r.Name("/tmp/ipykernel_7/1.py"))
}

// TestIsFile: files of packages, and of people who call them so, are none.
func TestIsFile(t *testing.T) {
	for file, want := range map[string]bool{
		"/tmp/ipykernel_123/456.py": true, "<ipython-input-14-0123456789ab>": true, "/tmp/ipython-input-14-456.py": true,
		"/venv/lib/python3.11/site-packages/ipykernel/kernelapp.py": false, "/usr/lib/dist-packages/ipykernel_launcher.py": false,
		"/home/me/train.py": false, "<string>": false, "": false,
	} {
		require.Equal(t, want, IsFile(file), file)
	}
}

// start runs the program. It ends when the test does.
func start(t *testing.T, python string) *process.Process {
	t.Helper()
	cmd := exec.Command(python, "-c", shell)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	_, err = bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err)
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p
}
