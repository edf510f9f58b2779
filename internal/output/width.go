// SPDX-License-Identifier: Apache-2.0

package output

import (
	"os"

	"golang.org/x/term"
)

// Width is how many columns a terminal has; 0 where the file is none.
func Width(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
