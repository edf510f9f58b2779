// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export/screen"
	"github.com/gputrace/gputrace/internal/terminaltest"
)

// TestScreen: colours are for a terminal that has them, where nobody asked for none; a file has the width that is asked for.
func TestScreen(t *testing.T) {
	_, slave := terminaltest.Open(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	for name, c := range map[string]struct {
		out  *os.File
		set  string
		want screen.Screen
	}{
		"terminal": {slave, "", screen.Screen{Color: true}}, "no color": {slave, "NO_COLOR=1", screen.Screen{}},
		"dumb": {slave, "TERM=dumb", screen.Screen{}},
		"file": {file, "", screen.Screen{}}, "columns": {file, "COLUMNS=132", screen.Screen{Width: 132}},
		"nonsense": {file, "COLUMNS=wide", screen.Screen{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, name := range []string{"NO_COLOR", "TERM", "COLUMNS"} {
				t.Setenv(name, "")
			}
			if key, value, ok := strings.Cut(c.set, "="); ok {
				t.Setenv(key, value)
			}
			got := Screen(c.out)
			if c.out == slave {
				got.Width = 0 // the terminal's own
			}
			require.Equal(t, c.want, got)
		})
	}
}
