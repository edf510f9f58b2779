// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// twoPythons loads a second interpreter, starts it if asked to, and then a library that refers to one of the two.
const twoPythons = `
import ctypes, os, sys
library, start, bound, deep = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]
second = ctypes.CDLL(library, mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
if start:
    second.Py_SetPythonHome.argtypes = [ctypes.c_wchar_p]
    second.Py_SetPythonHome(os.path.dirname(os.path.dirname(library)))
    second.Py_InitializeEx(0)
if bound:
    ctypes.CDLL(bound, mode=os.RTLD_LOCAL | (os.RTLD_DEEPBIND if deep else 0))
print("ready", flush=True)
os.read(0, 1)
`

// TestTwoPythons: of two interpreters the one that PyTorch's library refers to is read, else one that was started.
func TestTwoPythons(t *testing.T) {
	const first, second = "3.12.1", "3.13.0"
	library := filepath.Join(pyenvPrefix(t, second), "lib", "libpython3.13.so.1.0")
	dir := t.TempDir()
	source, bound := filepath.Join(dir, "bound.c"), filepath.Join(dir, torchBinding)
	require.NoError(t, os.WriteFile(source, []byte("extern char _Py_NoneStruct[]; char *none(void) { return _Py_NoneStruct; }\n"), 0o600))
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", bound, source, library).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, c := range []struct {
		start, bound, deep string
		want, other        string
		others             int // threads of the other one
	}{
		{"", "", "", first, second, 0},
		{"", bound, "", first, second, 0},
		{"start", bound, "", first, second, 1},
		{"start", bound, "deep", second, first, 1},
	} {
		t.Run(fmt.Sprintf("%s,%v,%s", c.start, c.bound != "", c.deep), func(t *testing.T) {
			p := start(t, pythonOf(t, first), "-c", twoPythons, library, c.start, c.bound, c.deep)
			r, err := Find(p)
			require.NoError(t, err)
			assert.Equal(t, c.want, r.Version.String())
			assert.Equal(t, c.bound != "", r.Bound)
			require.Len(t, r.Others, 1)
			assert.Equal(t, c.other, r.Others[0].Version.String())
			assert.Equal(t, c.others, r.Others[0].Threads)
			beside := ""
			if c.others > 0 {
				beside = fmt.Sprintf("Python %s (libpython%s.so.1.0)", c.other, c.other[:len("3.12")])
			}
			assert.Equal(t, beside, r.Beside(p))
			i, err := FindInterpreter(p)
			require.NoError(t, err)
			assert.Equal(t, c.want, i.Version.String())
			assert.Equal(t, r.Module, i.Module)
		})
	}
}
