// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// owed is a part of the sentence that each pattern of advice.py must get; empty: it is a near miss, and must get none of them.
var owed = map[string]string{
	"graph": ".item()", "scalars": ".item()", "thread": "enter it on this thread", "create_graph": "torch.autograd.grad",
	"autocast": "leave the context",
	"ctx":      "ctx.save_for_backward()", "chain": ".detach()", "cycle": "call gc.collect()", "metric": "quality was not emptied",
	"cache": "give it a limit",
	"lru":   "a smaller maxsize", "hooks": "register it once", "optimizers": "keeps every optimizer", "parameters": "gets new parameters",
	"pinned":   "pin one buffer",
	"own_hook": "whose graph keeps the hook", "linked": "x.parent = None",
	"plain_list": "", "hook_list": "",
}

// TestAdvice attaches to a program of each pattern, and reads the sentence on the first screen and in leaks. All
// patterns and their repaired twins run with GPUTRACE_ADVICE=all.
func TestAdvice(t *testing.T) {
	patterns, twins := []string{"create_graph", "cycle", "lru", "plain_list"}, []string{"create_graph"}
	if os.Getenv("GPUTRACE_ADVICE") == "all" {
		patterns = slices.Sorted(maps.Keys(owed))
		twins = patterns
	}
	for _, name := range patterns {
		t.Run(name, func(t *testing.T) {
			screen, found := adviceFor(t, name)
			require.Contains(t, screen, "GROWING advice.py:")
			if owed[name] == "" { // how many elements a list had, and has, accuses nothing
				said := strings.Count(screen, " grew from ") + strings.Count(screen, " elements and gets more: ")
				require.Equal(t, said, strings.Count(screen, " -> "), screen)
				return
			}
			require.Contains(t, screen, owed[name])
			require.NotEmpty(t, found.Findings)
			require.Equal(t, "advice.py", filepath.Base(found.Findings[0].File))
			require.Contains(t, found.Findings[0].Advice, owed[name])
		})
	}
	for _, name := range twins {
		t.Run(name+" fixed", func(t *testing.T) {
			screen, _ := adviceFor(t, name, "--fixed")
			require.NotContains(t, screen, "GROWING")
		})
	}
}

// adviceFor is the summary of six seconds of a pattern, with single spaces, and what leaks says of the recording.
func adviceFor(t *testing.T, pattern string, more ...string) (string, *leakReport) {
	t.Helper()
	p := startIn(t, t.TempDir(), nil, filepath.Join(env.testdata, "run"),
		append([]string{workload("advice.py"), pattern, "--seconds", "120"}, more...)...)
	p.await(t, "ready")
	c := newCommand(t, "record", "-p", itoa(p.pid), "-d", "6s", "-o", "OUT")
	c.start(t).succeeds(t)
	_, screen, ok := strings.Cut(c.stderr.String()+c.stdout.String(), "gputrace  advice.py")
	require.True(t, ok, c.stderr.String()+c.stdout.String())
	return strings.Join(strings.Fields(screen), " "), leaksIn(t, filepath.Join(c.out(), traceFile))
}
