// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// TestSame: a recording is exported to the same bytes each time, whatever the order of maps, the seeds of hashes and the number of
// processors are.
func TestSame(t *testing.T) {
	for name, s := range map[string]*eventtest.Stream{"random": eventtest.Random(3, 4000), "sites": manySites()} {
		path := filepath.Join(t.TempDir(), TraceName)
		w, err := recording.Create(path, &recording.Info{PID: eventtest.PID}, s.Stack, nil)
		require.NoError(t, err)
		require.NoError(t, w.Write(s.Events))
		require.NoError(t, w.Close(&recording.End{}))
		for i := range Formats {
			want := exported(t, path, &Formats[i])
			for range 4 {
				require.True(t, bytes.Equal(want, exported(t, path, &Formats[i])), "%s of %s", Formats[i].Name, name)
			}
		}
	}
}

// manySites is a training loop with sites, and blocks of them that are in use at the end, of all layers: sites of
// one step allocate as much as each other.
func manySites() *eventtest.Stream {
	j := eventtest.NewJob()
	for n := range 300 {
		line := fmt.Sprintf(" /home/a/train.py:%d:main", 100+n)
		j.Alloc(eventtest.Report+line, 1<<20)
		j.Obtain(event.LayerDevice, "libcudart.so!cudaMalloc libfoo.so!foo"+line, 1<<21)
		if n%5 == 0 {
			j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		}
	}
	return &j.Stream
}

// exported opens a recording and writes it in a format, on several processors.
func exported(t *testing.T, path string, f *Format) []byte {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	s, err := Open(path, nil)
	require.NoError(t, err)
	in, err := s.Input(&Window{}, "", func(error) {})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, f.Write(&out, in), f.Name)
	require.NoError(t, s.Close())
	return out.Bytes()
}
