// SPDX-License-Identifier: Apache-2.0

package console

import (
	"os"
	"strconv"

	"github.com/gputrace/gputrace/export/screen"
	"github.com/gputrace/gputrace/internal/output"
)

// Screen is what figures on a file are printed for: a terminal's own width, in colour unless NO_COLOR is set (no-color.org) or the terminal
// has none; of any other file the width of COLUMNS, without.
func Screen(out *os.File) screen.Screen {
	if !output.IsTerminal(out) {
		return screen.Screen{Width: columns()}
	}
	return screen.Screen{Width: output.Width(out), Color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// Width is the columns that a text is laid out for in an output: a file, or standard output where it has no name; 0: they are not known.
func Width(path string) int {
	if path == "" || path == "-" {
		return Screen(os.Stdout).Width
	}
	return columns()
}

// columns is what COLUMNS says; 0: nothing.
func columns() int {
	n, _ := strconv.Atoi(os.Getenv("COLUMNS")) // of anything else it is 0
	return max(n, 0)
}
