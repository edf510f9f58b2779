// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// startBytes is what a package may allocate when the program starts: every command waits for it.
const startBytes = 256 << 10

// initialized is a line of GODEBUG=inittrace=1 (package runtime, "Environment Variables").
var initialized = regexp.MustCompile(`(?m)^init (\S+) @\S+ ms, \S+ ms clock, (\d+) bytes, \d+ allocs$`)

// TestStart: no package does work at the start of the program that only some commands need.
func TestStart(t *testing.T) {
	dir, env := program(t)
	cmd := exec.Command(filepath.Join(dir, "gputrace"), "version")
	cmd.Env = append(env, "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	all := initialized.FindAllSubmatch(out, -1)
	require.NotEmpty(t, all, "%s", out)
	for _, found := range all {
		n, err := strconv.Atoi(string(found[2]))
		require.NoError(t, err)
		require.LessOrEqual(t, n, startBytes, "bytes that %s allocates before main", found[1])
	}
}
