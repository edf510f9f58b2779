// SPDX-License-Identifier: Apache-2.0

package export

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// passes counts how often a file is read to its last byte.
type passes struct {
	io.ReaderAt
	size, count int64
}

// ReadAt implements io.ReaderAt.
func (p *passes) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) == p.size {
		p.count++
	}
	return p.ReaderAt.ReadAt(b, at)
}

// TestPasses: how often each format reads a recording, the opening included: once for the steps and what is concluded, which profiles and
// timelines have too, and once for the view. A pass more costs as much as an export did.
func TestPasses(t *testing.T) {
	j := eventtest.NewJob()
	for range 60 {
		j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
	}
	path := filepath.Join(t.TempDir(), TraceName)
	w, err := recording.Create(path, &recording.Info{PID: 7}, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	require.NoError(t, w.Close(&recording.End{}))

	for _, tt := range []struct {
		format string // empty: the first screen; "end": that and then the page, as at the end of a recording
		want   int64
	}{
		{"pprof", 3}, {"pprof-alloc", 4}, {"folded", 2}, {"json", 3}, {"csv", 3}, {"html", 3}, {"perfetto", 4}, {"", 3}, {"end", 3},
	} {
		var file *passes
		s, err := Open(path, &OpenOptions{Watch: func(r io.ReaderAt, size int64, _ string) io.ReaderAt {
			file = &passes{ReaderAt: r, size: size}
			return file
		}})
		require.NoError(t, err)
		if tt.format == "" || tt.format == "end" {
			o := &AnswerOptions{}
			if tt.format == "end" {
				page := PageName
				o.Page = &page
			}
			require.NoError(t, s.PrintAnswer(io.Discard, o))
		}
		if tt.format != "" {
			in, err := s.Input(&Window{}, "", func(error) {})
			require.NoError(t, err)
			formats, err := Find(strings.Replace(tt.format, "end", "html", 1))
			require.NoError(t, err)
			require.NoError(t, formats[0].Write(io.Discard, in))
		}
		require.Equal(t, tt.want, file.count, tt.format)
		require.NoError(t, s.Close())
	}
}
