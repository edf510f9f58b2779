// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"strings"
	"testing"

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
	require.NoError(t, WriteText(&b, sick(), "1.2"))
	require.Equal(t, `gputrace 1.2 · pid 42 a b`+"\ufffd"+`[2J

kernel
  ok       Linux                        6.18

rights
  failed   CAP_BPF                      missing
           host:        sudo setcap
           docker:      docker run --cap-add
  failed   CAP_PERFMON                  missing
           mended by the same

libraries
  unknown  driver                       none

tracing will not work: x
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
