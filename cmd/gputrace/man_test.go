// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
)

// tool skips a test that needs a program which is not there; in CI it fails.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "" {
		t.Skipf("needs %s: .ci/install test", name)
	}
	require.NoError(t, err, "needs %s: .ci/install test", name)
	return path
}

// TestManual: the page is what man expects, and has every command, flag and exit code.
func TestManual(t *testing.T) {
	page, stderr, code := gputrace(t, "man")
	require.Zero(t, code, stderr)
	lint := exec.Command(tool(t, "mandoc"), "-Tlint", "-Wwarning")
	lint.Stdin = strings.NewReader(page)
	out, err := lint.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))

	show := exec.Command(tool(t, "mandoc"), "-Tutf8", "-Owidth=1000")
	show.Stdin = strings.NewReader(page)
	out, err = show.Output()
	require.NoError(t, err)
	text := plain(string(out))
	app := newApp()
	for _, c := range app.VisibleCommands() {
		require.Regexp(t, `(?m)^ *`+strings.Join(c.Names(), ", ")+"$", text)
		for _, f := range c.Flags {
			for _, name := range f.Names() {
				require.Contains(t, text, flags.Dash(name))
			}
		}
		for _, e := range examples[c.Name] {
			require.Contains(t, text, e.Line)
		}
	}
	for _, f := range export.Formats {
		require.Regexp(t, `(?m)^\s+`+f.Name+`\s`, text)
	}
	for _, e := range exit.Codes {
		require.Regexp(t, fmt.Sprintf(`(?m)^\s+%d\s+%s`, e.Code, e.Meaning), text)
	}
}

// plain drops what terminals of old did for bold: a letter, a backspace and the letter again.
func plain(s string) string {
	var out []rune
	for _, r := range s {
		if r == '\b' && len(out) > 0 {
			out = out[:len(out)-1]
			continue
		}
		out = append(out, r)
	}
	return string(out)
}

// TestExitCodesDocumented: the page of the command line has the same codes.
func TestExitCodesDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/use/cli.md")
	require.NoError(t, err)
	for _, e := range exit.Codes {
		require.Contains(t, string(page), fmt.Sprintf("| %d | %s |\n", e.Code, e.Meaning))
	}
}
