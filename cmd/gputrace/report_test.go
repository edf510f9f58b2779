// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recording"
)

// TestReportOfForeignFiles: the exit code says that the file is at fault, and a mark that leads nowhere is no crash.
func TestReportOfForeignFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gputrace")
	w, err := recording.Create(path, &recording.Info{PID: 7}, nil, nil)
	require.NoError(t, err)
	require.NoError(t, w.Annotate(&event.Annotation{Kind: event.AnnotationObserved, PID: 7, Observation: &event.Observation{PID: 7}}))
	require.NoError(t, w.Close(&recording.End{}))
	err = report(reportOptions{path: path})
	require.Equal(t, exitInvalid, exit.Code(err))
	require.ErrorContains(t, err, "replay observed")
	require.NoError(t, os.Truncate(path, 30))
	require.Equal(t, exitInvalid, exit.Code(report(reportOptions{path: path})))
	require.Equal(t, exitError, exit.Code(report(reportOptions{path: path + "x"})))
}
