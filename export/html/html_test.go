// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// What a browser makes of a page is tested in e2e/browser/html.

func input(t *testing.T) Input {
	t.Helper()
	trace, err := view.NewTrace(eventtest.Random(27, 2000), nil)
	require.NoError(t, err)
	b, err := pagemodel.New(trace, nil)
	require.NoError(t, err)
	return Input{Model: b, View: trace.End(), Program: "python train.py", PID: 4242}
}

// A page that is written twice is the same, byte for byte, and names no address.
func TestWrite(t *testing.T) {
	in := input(t)
	in.Started = time.Date(2026, 11, 21, 14, 2, 31, 0, time.UTC)
	var one, two bytes.Buffer
	require.NoError(t, Write(&one, in))
	require.NoError(t, Write(&two, in))
	require.Equal(t, one.Bytes(), two.Bytes())
	for _, address := range []string{"http:", "https:", "//cdn", "@import", "url("} {
		require.NotContains(t, one.String(), address)
	}
}

var errFull = errors.New("no space left on device")

type errorWriter struct{}

func (errorWriter) Write([]byte) (int, error) { return 0, errFull }

func TestWriteError(t *testing.T) {
	require.Error(t, Write(errorWriter{}, Input{}), "no trace")
	require.ErrorIs(t, Write(errorWriter{}, input(t)), errFull)
	require.ErrorIs(t, WriteDiff(errorWriter{}, DiffInput{Difference: &view.Difference{}}), errFull)
}
