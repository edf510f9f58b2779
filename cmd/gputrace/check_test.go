// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckCommand: each rule is met or not, with a sentence that has the bound, what was measured and the line.
func TestCheckCommand(t *testing.T) {
	leak, steady := leaking(t, true), leaking(t, false)
	tests := []struct {
		args []string
		want string
		code int
	}{
		{[]string{steady, "--max-peak", "1024"}, "passed   max-peak: cuda:0 reached 512 B of at most 1.0 KiB", 0},
		{[]string{steady, "--max-peak", "512"}, "passed   max-peak: cuda:0 reached 512 B of at most 512 B", 0},
		{[]string{leak, "--max-peak", "20479"}, "FAILED   max-peak: cuda:0 reached 20.0 KiB, 1 B above the limit of 20.0 KiB; the\n         " +
			"largest part, 20.0 KiB, is of train.py:30 main\n", 4},
		{[]string{steady, "--no-leaks"}, "passed   no-leaks: steady: nothing grew from step to step in 39 steps\n", 0},
		{[]string{leak, "--no-leaks"}, "FAILED   no-leaks: growing: train.py:30 main keeps 4 B more each step", 4},
		{[]string{leak, "--max-growth-per-step", "0"}, "FAILED   max-growth-per-step: memory grows by 4 B each step, 4 B above the limit\n    " +
			"     of 0 B\n         train.py:30 main keeps 4 B", 4},
		{[]string{leak, "--max-growth-per-step", "4"}, "passed   max-growth-per-step: memory grows by 4 B each step, of at most 4 B", 0},
		{[]string{steady, "--no-oom"}, "passed   no-oom: no request was refused\n", 0},
		{[]string{leak, "--baseline", steady}, "passed   baseline: ", 0}, // of less than 1 MiB
		{[]string{steady, leak, "--no-leaks", "--no-oom"}, "check failed: 1 of 4 rules not met\n", 4},
	}
	for _, tt := range tests {
		out, stderr, code := gputrace(t, append([]string{"check"}, tt.args...)...)
		require.Equal(t, tt.code, code, "%s %s", out, stderr)
		require.Contains(t, out, tt.want)
		require.Empty(t, stderr)
	}
}

// TestCheckFiles: what programs read says the same.
func TestCheckFiles(t *testing.T) {
	xmlFile := filepath.Join(t.TempDir(), "memory.xml")
	out, stderr, code := gputrace(t, "check", leaking(t, true), "--json", "--no-leaks", "--no-oom", "--junit", xmlFile)
	require.Equal(t, 4, code, stderr)
	var got struct {
		Format     string
		Passed     bool
		Recordings []struct {
			Rules []struct {
				Rule, Status        string
				Bound, Measured, By *float64
				Found               []struct {
					File     string
					Line     int
					Measured float64
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, "gputrace check", got.Format)
	require.False(t, got.Passed)
	rule := got.Recordings[0].Rules[0]
	require.Equal(t, "no-leaks failed", rule.Rule+" "+rule.Status)
	require.Equal(t, 30, rule.Found[0].Line)
	require.InDelta(t, 4, rule.Found[0].Measured, 0)
	require.InDelta(t, 1, *rule.By, 0)
	var suites struct {
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure string `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	b, err := os.ReadFile(xmlFile)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(b, &suites))
	require.Equal(t, 1, suites.Failures)
	require.Equal(t, "no-leaks", suites.Suites[0].Cases[0].Name)
	require.Contains(t, suites.Suites[0].Cases[0].Failure, "train.py:30 main")
	require.Empty(t, suites.Suites[0].Cases[1].Failure)
}

// TestCheckRefuses: what is wrong with the command line, and with a file, is no failed gate.
func TestCheckRefuses(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(none, []byte("no recording"), 0o600))
	tests := []struct {
		want string
		code int
		args []string
	}{
		{"which recording?", 2, []string{"check", "--no-oom"}},
		{"which rules?", 2, []string{"check", "x"}},
		{"--tolerance needs --baseline", 2, []string{"check", "x", "--no-oom", "--tolerance", "1%"}},
		{"not a part", 2, []string{"check", "x", "--baseline", "y", "--tolerance", "much"}},
		{"the rules of a check need --check", 2, []string{"run", "--no-oom", "--", "true"}},
		{"--check: which rules?", 2, []string{"run", "--check", "--", "true"}},
		{"none", 5, []string{"check", none, "--no-oom"}},
		{"no recording is in the folder", 5, []string{"check", t.TempDir(), "--no-oom"}},
	}
	for _, tt := range tests {
		stdout, stderr, code := gputrace(t, tt.args...)
		require.Equal(t, tt.code, code, tt.args)
		require.Contains(t, stderr, tt.want)
		require.Empty(t, stdout)
	}
}
