// SPDX-License-Identifier: Apache-2.0

package frameworks

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

func TestParseVersion(t *testing.T) {
	for name, c := range map[string]struct{ text, torch, cuda string }{
		"2.15": {"from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n__version__ = " +
			"'2.15.0+cu130'\n" +
			"debug = False\ncuda: Optional[str] = '13.0'\ngit_version = 'abc'\nhip: Optional[str] = None\n", "2.15.0+cu130", "13.0"},
		"1.13":                     {"__version__ = '1.13.1'\ndebug = False\ncuda = '11.7'\ngit_version = 'x'\nhip = None\n", "1.13.1", "11.7"},
		"CPU":                      {"__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n", "2.6.0+cpu", ""},
		"quoted otherwise":         {"__version__=\"2.1\"\ncuda=\"12.1\"", "2.1", "12.1"},
		"RMM":                      {"26.10.00\n", "26.10.00", ""},
		"empty":                    {"", "", ""},
		"line longer than allowed": {"__version__ = '" + strings.Repeat("9", 65) + "'", "", ""},
		"endless line":             {strings.Repeat("x", 1<<20) + "\n__version__ = '2.0'", "", ""},
		"far behind the beginning": {strings.Repeat("\n", 1000) + "__version__ = '2.0'", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			torch, cuda := parseVersion(strings.NewReader(c.text))
			require.Equal(t, c.torch, torch)
			require.Equal(t, c.cuda, cuda)
		})
	}
}

// TestBFC: TensorFlow and JAX are named, and no other framework.
func TestBFC(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	library := func(path string) process.Mapping { return process.Mapping{Path: path, Inode: 1, Exec: true} }
	torch, tensorflow, jax := library("/a/libc10.so"), library("/a/libtensorflow_framework.so.2"), library("/a/xla_cuda_plugin.so")
	require.Empty(t, BFC(p, []process.Mapping{torch}))
	require.Equal(t, "TensorFlow 2", BFC(p, []process.Mapping{torch, tensorflow}))
	require.Equal(t, "JAX and TensorFlow 2", BFC(p, []process.Mapping{tensorflow, jax}))
}

func FuzzParseVersion(f *testing.F) {
	f.Add("__version__ = '2.15.0'\ncuda = '13.0'\n")
	f.Fuzz(func(t *testing.T, text string) {
		torch, cuda := parseVersion(strings.NewReader(text))
		require.LessOrEqual(t, len(torch), 64)
		require.LessOrEqual(t, len(cuda), 32)
		require.NotContains(t, torch+cuda, "\n")
	})
}
