// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestText: one cause a line, and no file twice.
func TestText(t *testing.T) {
	_, missing := os.Open("/nosuch/file")
	ours := errors.New("not permitted")
	for want, err := range map[string]error{
		"read figures: broken": fmt.Errorf("read figures: %w", errors.New("broken")),
		"open recording /nosuch/file: no such file or directory": fmt.Errorf("open recording: %w", missing),
		"open /nosuch/file: no such file or directory":           fmt.Errorf("open /nosuch/file: %w", missing),
		"read the clock: ask the kernel: broken": fmt.Errorf("read the clock: %w",
			fmt.Errorf("ask the kernel: %w", errors.New("broken"))),
		"no process 7\n  gputrace lists them": With(Nothing,
			Say("no process 7\n  gputrace lists them", fmt.Errorf("open pid 7: %w: %w", ours, missing))),
		"alone":                         With(Error, errors.New("alone")),
		"in (broken) the middle: stays": fmt.Errorf("in (%w) the middle: stays", errors.New("broken")),
	} {
		require.Equal(t, want, Text(err))
	}
}

// TestCauses: all that is behind, one each, in order.
func TestCauses(t *testing.T) {
	_, missing := os.Open("/nosuch/file")
	err := With(Nothing, Say("no process 7", fmt.Errorf("open pid 7: %w: %w", errors.New("no such process"), missing)))
	require.Equal(t, []string{"open pid 7: no such process", "open /nosuch/file", "no such file or directory"}, Causes(err))
}
