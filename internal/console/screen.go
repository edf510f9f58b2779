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
		n, _ := strconv.Atoi(os.Getenv("COLUMNS")) // of anything else it is 0, the default
		return screen.Screen{Width: n}
	}
	return screen.Screen{Width: output.Width(out), Color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}
