// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer/hook"
)

// TestFound: what was found is described with what is known of it.
func TestFound(t *testing.T) {
	f := &recorder.Found{PythonErr: errors.New("no interpreter")}
	require.Equal(t, "Python: native frames only (no interpreter)", Python(f))
	require.Equal(t, "PyTorch unknown", Torch(f))
	f.Hooks = []recorder.Hook{{Library: hook.Torch}}
	require.Equal(t, "PyTorch unknown", Torch(f), "only its version")
	f.Hooks, f.NoPython = []recorder.Hook{{Library: hook.Driver}}, true
	require.Equal(t, "no PyTorch", Torch(f))
	require.Equal(t, "no Python", Python(f))
	require.Equal(t, "driver unknown", Driver(f, ""))
	require.Equal(t, "driver 570", Driver(f, "570"))
	f = &recorder.Found{Python: "3.11", PyTorch: "2.8", Driver: "libcuda.so.570"}
	require.Equal(t, "Python 3.11", Python(f))
	f.Beside = "2 sub-interpreters"
	require.Equal(t, "Python 3.11 (lines of 2 sub-interpreters in the same process are not known)", Python(f))
	require.Equal(t, "PyTorch 2.8", Torch(f))
	require.Equal(t, "driver libcuda.so.570", Driver(f, "570"))
	f.CUDA = "12.8"
	require.Equal(t, "PyTorch 2.8 (CUDA 12.8)", Torch(f))
}
