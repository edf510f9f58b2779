// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/program"
)

// TestWhatIsChanged: what docs/use/known-issues.md says of a traced process. The code that is traced differs from the file's by one byte a
// function, only in the process that is traced; a page called [uprobes] comes with the first return and stays; afterwards the code
// is as it was.
func TestWhatIsChanged(t *testing.T) {
	const breakpoint = 0xcc // int3
	o, p := startOwnAs(t, program.Driver, false)
	same, err := program.Start(o.Path()) // the same file
	require.NoError(t, err)
	t.Cleanup(same.Close)
	require.NoError(t, same.Step(1))
	beside, err := process.Open(same.PID())
	require.NoError(t, err)
	code, err := program.ReadCode()
	require.NoError(t, err)
	before := codeOf(t, p)
	require.Equal(t, before, codeOf(t, beside))
	require.False(t, hasProbePage(t, p))

	tr := Open(nil)
	_, err = tr.Add(p)
	require.NoError(t, err)
	require.NoError(t, o.Step(1))
	during := codeOf(t, p)
	var changed []string
	for i := range before {
		if before[i] == during[i] {
			continue
		}
		require.EqualValues(t, breakpoint, during[i])
		for _, name := range []string{"report", "allocate", "free"} {
			if code.Offset(name) == uint64(i) {
				changed = append(changed, name)
			}
		}
	}
	require.Equal(t, []string{"allocate", "free"}, changed)
	require.True(t, hasProbePage(t, p))
	require.NoError(t, same.Step(1))
	require.Equal(t, before, codeOf(t, beside))
	require.False(t, hasProbePage(t, beside))

	require.NoError(t, tr.Close())
	require.NoError(t, o.Step(1))
	require.Equal(t, before, codeOf(t, p))
	require.True(t, hasProbePage(t, p))
}

// codeOf reads the code of the program of our own as the process has it.
func codeOf(t *testing.T, p *process.Process) []byte {
	t.Helper()
	maps, err := p.Maps()
	require.NoError(t, err)
	for _, m := range maps {
		if m.Exec && strings.HasSuffix(m.Path, "/"+program.Driver) {
			out := make([]byte, len(program.Image))
			n, err := p.ReadAt(out[:min(uint64(len(out)), m.End-m.Start)], m.Start)
			require.NoError(t, err)
			return out[:n]
		}
	}
	require.FailNow(t, "the program is not mapped")
	return nil
}

// hasProbePage reports whether the process has the page that the kernel adds for return probes.
func hasProbePage(t *testing.T, p *process.Process) bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID))
	require.NoError(t, err)
	return strings.Contains(string(b), "[uprobes]")
}
