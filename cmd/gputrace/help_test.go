package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHelp: each command has a help, in which its flags and its examples are, by --help, -h and the command help.
func TestHelp(t *testing.T) {
	list, stderr, code := gputrace(t, "--help")
	require.Zero(t, code, stderr)
	require.Contains(t, list, "sudo gputrace 4242")
	require.NotContains(t, list, completeName)
	for _, c := range newApp().VisibleCommands() {
		require.Contains(t, list, "\n   "+c.Name+" ", "the list of commands")
		help, stderr, code := gputrace(t, c.Name, "--help")
		require.Zero(t, code, stderr)
		if c.Name == "help" { // cli shows that of the program
			require.Equal(t, list, help)
			continue
		}
		require.Contains(t, help, "EXAMPLES:")
		require.NotEmpty(t, examples[c.Name], c.Name)
		for _, e := range examples[c.Name] {
			require.Contains(t, help, "   "+e.line+"\n      "+e.what+"\n")
		}
		for _, f := range c.VisibleFlags() {
			require.Contains(t, help, dash(f.Names()[0]))
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
	for _, key := range []string{"commit", "modified", "platform"} {
		require.Contains(t, got, key)
	}
}
