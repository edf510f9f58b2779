// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/doctor"
)

func sick() *doctor.Report {
	fixes := []doctor.Fix{{Where: "host", Line: "sudo setcap"}, {Where: "docker", Line: "docker run\n--cap-add"}}
	return &doctor.Report{PID: 42, Program: "a\nb\x1b[2J", Verdict: "tracing will not work: x", Checks: []doctor.Check{
		{Group: doctor.Kernel, Name: "Linux", Says: "6.18"},
		{Group: doctor.Rights, Name: "CAP_BPF", State: doctor.Failed, Says: "missing", Needed: true, Fixes: fixes},
		{Group: doctor.Rights, Name: "CAP_PERFMON", State: doctor.Failed, Says: "missing", Needed: true, Fixes: fixes},
		{Group: doctor.Library, Name: "driver", State: doctor.Unknown, Says: "none", File: &doctor.File{Path: "/x", Functions: []string{"f"}}},
	}}
}

func TestWriteReport(t *testing.T) {
	var b strings.Builder
	require.NoError(t, writeReport(&b, sick()))
	require.Equal(t, `gputrace `+version+` · pid 42 a b`+"\ufffd"+`[2J

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

func TestWriteReportJSON(t *testing.T) {
	var b strings.Builder
	require.NoError(t, writeReportJSON(&b, sick()))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.String()), &got))
	require.Equal(t, "gputrace doctor", got["format"])
	require.EqualValues(t, doctorVersion, got["version"])
	require.Equal(t, false, got["works"])
	checks := got["checks"].([]any)
	require.Len(t, checks, 4)
	require.Equal(t, "failed", checks[1].(map[string]any)["state"])
	require.NotContains(t, checks[0], "fixes")
	require.Equal(t, []any{"f"}, checks[3].(map[string]any)["file"].(map[string]any)["functions"])
}

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
