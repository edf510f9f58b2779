// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoctorRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"doctor -p x":       "not a process id",
		"doctor -d 1h":      "more than 1m0s",
		"doctor -d x":       "not a time",
		"doctor --memory x": `--memory "x": not one of auto`,
		"doctor 42 x":       `unknown argument "x"`,
		"doctor something":  `unknown argument "something"`,
	} {
		_, stderr, code := gputrace(t, strings.Fields(line)...)
		require.Equal(t, exitUsage, code, line)
		require.Contains(t, stderr, want, line)
	}
}
