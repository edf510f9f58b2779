// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"

	"github.com/stretchr/testify/require"
)

// TestHelp: each command has a help, in which its flags and its examples are, by --help, -h and the command help.
func TestHelp(t *testing.T) {
	list, stderr, code := gputrace(t, "--help")
	require.Zero(t, code, stderr)
	require.Contains(t, list, "sudo gputrace 4242")
	for _, c := range newApp().VisibleCommands() {
		require.Regexp(t, "\n   "+strings.Join(c.Names(), ", ")+" ", list, "the list of commands")
		help, stderr, code := gputrace(t, c.Name, "--help")
		require.Zero(t, code, stderr)
		if c.Name == "help" { // cli shows that of the program
			require.Equal(t, list, help)
			continue
		}
		options, _, found := strings.Cut(help, "EXAMPLES:")
		require.True(t, found)
		for line := range strings.Lines(options) {
			require.LessOrEqual(t, len([]rune(line)), helpWidth+1, line)
		}
		require.NotEmpty(t, examples[c.Name], c.Name)
		for _, e := range examples[c.Name] {
			require.Contains(t, help, "   "+e.Line+"\n      "+e.What+"\n")
		}
		for _, f := range c.VisibleFlags() {
			require.Contains(t, help, flags.Dash(f.Names()[0]))
		}
		for _, line := range [][]string{{c.Name, "-h"}, {"-h", c.Name}, {"help", c.Name}} {
			other, stderr, code := gputrace(t, line...)
			require.Zero(t, code, "%s: %s", line, stderr)
			require.Equal(t, help, other, line)
		}
	}
	for _, line := range [][]string{{"help"}, {"-h"}} {
		other, _, _ := gputrace(t, line...)
		require.Equal(t, list, other)
	}
}

func TestHelpRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"help reprot":     `did you mean "report"?`,
		"help who dump":   "one command at a time",
		"version who":     `unknown argument "who"`,
		"man who":         `unknown argument "who"`,
		"completion":      "give bash, zsh or fish",
		"completion tcsh": "give bash, zsh or fish",
		"reprot x":        `did you mean "report"?`,
		"report --jsn x":  "unknown flag --jsn",
		"dump -p 1 -d 5x": "unknown flag -d",
		"-p 1 -d 5x":      "see gputrace --help",
		"record -d 5x":    "see gputrace record --help",
	} {
		stdout, stderr, code := gputrace(t, strings.Fields(line)...)
		require.Equal(t, exitUsage, code, line)
		require.Contains(t, stderr, want, line)
		require.True(t, strings.HasPrefix(stderr, "gputrace: "), stderr)
		require.Empty(t, stdout, "talk goes to stderr")
	}
}

func TestVersion(t *testing.T) {
	text, stderr, code := gputrace(t, "version")
	require.Zero(t, code, stderr)
	require.Equal(t, "gputrace "+version+" ("+runtime.Version()+", "+runtime.GOOS+"/"+runtime.GOARCH+")\n", text)
	text, stderr, code = gputrace(t, "version", "--json")
	require.Zero(t, code, stderr)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Equal(t, version, got["version"])
	require.Equal(t, runtime.Version(), got["go"])
	for _, key := range []string{"commit", "modified", "platform", "nvml"} {
		require.Contains(t, got, key)
	}
}

// TestExamplesAreRead: what the help shows can be typed.
func TestExamplesAreRead(t *testing.T) {
	for command, list := range examples {
		require.NotEmpty(t, list, command)
		for _, e := range list {
			line, _, _ := strings.Cut(e.Line, " | ")
			line, _, _ = strings.Cut(line, " > ")
			line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(line, "source <("), "sudo "), ")")
			words := strings.Fields(line)
			require.Equal(t, "gputrace", words[0], e.Line)
			out, err := flags.Order(newApp(), words)
			require.NoError(t, err, e.Line)
			if command != "" && strings.Trim(words[1], "0123456789") != "" {
				require.Equal(t, command, out[1], e.Line)
			}
		}
	}
}
