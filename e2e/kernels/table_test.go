// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// row is one of the table, whose kernel and object matter.
func row(release, object string) []string {
	return []string{release, object, "perf events", "copied", "1", "100 %", "all 9 hold"}
}

// TestMerge: the kernels that were booted have new rows, the others keep theirs, and all are in the order of their numbers.
func TestMerge(t *testing.T) {
	text := "words\n" + from + table([][]string{row("6.1.2", "old"), row("6.12.1", "old"), row("7.0.1", "old")}) + to + "more\n"
	got, err := merge(text, [][]string{row("7.0.2", "new"), row("6.9.9", "new"), row("6.12.3+deb13", "new")})
	require.NoError(t, err)
	want := table([][]string{row("6.1.2", "old"), row("6.9.9", "new"), row("6.12.3+deb13", "new"), row("7.0.2", "new")})
	require.Equal(t, "words\n"+from+want+to+"more\n", got)
	again, err := merge(got, nil)
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func TestMergeRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no place":            "words",
		"no end":              from + "| Linux |\n",
		"a row of other kind": from + "| Linux |\n|---|\n| 6.1.2 | - |\n" + to,
	} {
		_, err := merge(text, nil)
		require.Error(t, err, name)
	}
}

// TestPage: the page has a row for each series that is booted, and one for the kernel that is too old.
func TestPage(t *testing.T) {
	b, err := os.ReadFile("../../" + page)
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(b), from)
	shown, _, _ := strings.Cut(rest, to)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(shown), "\n")[2:] {
		got = append(got, strings.Join(strings.SplitN(cells(line)[0], ".", 3)[:2], "."))
	}
	b, err = os.ReadFile("series.txt")
	require.NoError(t, err)
	require.Equal(t, append([]string{tooOld}, strings.Fields(string(b))...), got)
}

// TestVerdict: a row does not say of a part of the checks that all hold.
func TestVerdict(t *testing.T) {
	ok, bad := checked{Name: "record", OK: true}, checked{Name: "doctor"}
	for want, r := range map[string]result{
		"none made":                {},
		"all 2 hold":               {Checks: []checked{ok, ok}, Facts: map[string]string{"checks": "2"}},
		"2 of 9 made, all hold":    {Checks: []checked{ok, ok}, Facts: map[string]string{"checks": "9"}},
		"failed: doctor":           {Checks: []checked{ok, bad}, Facts: map[string]string{"checks": "2"}},
		"refused, as it should be": {kernel: kernel{Series: tooOld}, Checks: []checked{ok}, Facts: map[string]string{"checks": "1"}},
	} {
		require.Equal(t, want, r.verdict())
	}
}

// TestPatched: a breakpoint in the kernel's own code is another fault than one in a program.
func TestPatched(t *testing.T) {
	const head = "[  241.6] Oops: int3: 0000 [#1] SMP NOPTI\r\n[  241.6] CPU: 1 UID: 0 PID: 926 Comm: podman Not tainted\r\n"
	require.True(t, patched.MatchString(head+"[  241.6] RIP: 0010:__alloc_frozen_pages_noprof+0x1d3/0x3b0\r\n"))
	require.False(t, patched.MatchString(head+"[  241.6] RIP: 0033:0x7f0012345678\r\n"))
	require.False(t, patched.MatchString("[  1.0] Oops: 0000 [#1] SMP\r\n[  1.0] RIP: 0010:uprobe_notify_resume+0x1/0x2\r\n"))
}
