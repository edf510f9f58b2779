// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func sick() *Report {
	fixes := []Fix{{Where: "host", Line: "sudo setcap"}, {Where: "docker", Line: "docker run\n--cap-add"}}
	return &Report{PID: 42, Program: "a\nb\x1b[2J", Verdict: "tracing will not work: x", Checks: []Check{
		{Group: Kernel, Name: "Linux", Says: "6.18"},
		{Group: Rights, Name: "CAP_BPF", State: Failed, Says: "missing", Needed: true, Fixes: fixes},
		{Group: Rights, Name: "CAP_PERFMON", State: Failed, Says: "missing", Needed: true, Fixes: fixes},
		{Group: Library, Name: "driver", State: Unknown, Says: "none", File: &File{Path: "/x", Functions: []string{"f"}}},
	}}
}

func TestWriteText(t *testing.T) {
	var b strings.Builder
	require.NoError(t, WriteText(&b, sick(), Text{Version: "1.2", All: true}))
	require.Equal(t, `gputrace 1.2 · pid 42 a b`+"\ufffd"+`[2J

kernel
  ok       Linux                        6.18

rights
  failed   CAP_BPF                      missing
           host:        sudo setcap
           docker:      docker run --cap-add
  failed   CAP_PERFMON                  missing
           fixed by the same

libraries
  unknown  driver                       none

tracing will not work: x
`, b.String())
}

// TestTextFits: no line is wider than the terminal but those that are to be copied.
func TestTextFits(t *testing.T) {
	r := sick()
	r.Checks = append(r.Checks, Check{Group: Limits, Name: "unprivileged_bpf_disabled",
		Says: "2: only with CAP_BPF, which root and those who are given it have"})
	r.Verdict = "tracing will work on this machine; gputrace doctor -p PID checks a process"
	for _, width := range []int{60, 80} {
		for _, all := range []bool{true, false} {
			var b strings.Builder
			require.NoError(t, WriteText(&b, r, Text{Version: "1.2", All: all, Width: width}))
			for line := range strings.Lines(b.String()) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
			}
			text := strings.Join(strings.Fields(b.String()), " ")
			require.Contains(t, text, r.Verdict)
			if all {
				require.Contains(t, text, r.Checks[len(r.Checks)-1].Says)
			}
		}
	}
}

// TestFolded: groups about the machine in which nothing is wrong are a line each; what is wrong, or about the process, is whole.
func TestFolded(t *testing.T) {
	ok := func(g Group, name string) Check { return Check{Group: g, Name: name, Says: "as " + name} }
	r := &Report{Verdict: "tracing will work", Checks: []Check{
		ok(Kernel, "Linux"), ok(Kernel, "BTF"), ok(Rights, "CAP_BPF"), ok(Rights, "CAP_PERFMON"), ok(Rights, "CAP_SYS_PTRACE"),
		ok(Rights, "user namespace"),
		ok(Limits, "lockdown"), {Group: Limits, Name: "locked memory", State: Unknown, Says: "not known"}, ok(Library, "driver"),
		ok(Attach, "probe"),
	}}
	var b strings.Builder
	require.NoError(t, WriteText(&b, r, Text{Version: "1.2"}))
	require.Equal(t, `gputrace 1.2

  ok       kernel                       2 checks: as Linux
  ok       rights                       4 checks: CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE ...

limits
  ok       lockdown                     as lockdown
  unknown  locked memory                not known

libraries
  ok       driver                       as driver

  ok       attach                       1 check: as probe

-v shows each check

tracing will work
`, b.String())
}

func TestWriteJSON(t *testing.T) {
	var b strings.Builder
	require.NoError(t, WriteJSON(&b, sick(), "1.2"))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.String()), &got))
	require.Equal(t, "gputrace doctor", got["format"])
	require.EqualValues(t, jsonVersion, got["version"])
	require.Equal(t, false, got["works"])
	checks := got["checks"].([]any)
	require.Len(t, checks, 4)
	require.Equal(t, "failed", checks[1].(map[string]any)["state"])
	require.NotContains(t, checks[0], "fixes")
	require.Equal(t, []any{"f"}, checks[3].(map[string]any)["file"].(map[string]any)["functions"])
}
