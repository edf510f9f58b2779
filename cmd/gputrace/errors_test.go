// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// printed is what a command line prints, on both streams.
func printed(t *testing.T, line string) string {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	require.NoError(t, err)
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = out, out
	run(append([]string{"gputrace"}, strings.Fields(line)...))
	os.Stdout, os.Stderr = stdout, stderr
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	return string(text)
}

// TestErrorsAreShort: an error has one cause and, where there is one, the next step; -v prints what is behind it.
func TestErrorsAreShort(t *testing.T) {
	const noSuch = "gputrace: open recording nosuch: no such file or directory\n  none is in this folder; to make one: sudo gputrace -p PID\n"
	for line, want := range map[string]string{
		"-p 2147483646":     "gputrace: no process 2147483646\n  to list those that use a GPU: gputrace\n",
		"who -p 2147483646": "gputrace: no process 2147483646\n  to list those that use a GPU: gputrace\n",
		"report nosuch":     noSuch,
		"top nosuch --once": noSuch,
		"diff nosuch x":     noSuch,
		"report nosuch -v":  noSuch + "  cause: open recording\n  cause: open nosuch\n  cause: no such file or directory\n",
		"who --tpo 3":       "gputrace: unknown flag --tpo: did you mean \"--top\"? See gputrace who --help\n",
		"hwo -p 1":          "gputrace: unknown command \"hwo\": did you mean \"who\"? See gputrace --help\n",
		"help foo":          "gputrace: unknown command \"foo\"; see gputrace --help\n",
		"export -f pgn x":   "gputrace: -f \"pgn\": \"pgn\" is not a format: did you mean \"png\"? See gputrace export --help\n",
		"dump -p 1 -f jsno": "gputrace: -f \"jsno\": not one of text, json or snapshot: did you mean \"json\"? See gputrace dump --help\n",
	} {
		require.Equal(t, want, printed(t, line), line)
	}
}

// TestExportFolder: several formats make their folder, and say how each is opened; where nothing could be written, none is left.
func TestExportFolder(t *testing.T) {
	path, _ := recorded(t, 1, 200)
	dir := filepath.Join(t.TempDir(), "new")
	require.Equal(t, "wrote "+dir+"/memory.folded   flamegraph.pl "+dir+"/memory.folded > flame.svg\nwrote "+dir+"/memory.svg\n",
		printed(t, "export "+path+" -f folded,svg -o "+dir))
	require.FileExists(t, dir+"/memory.svg")
	require.Contains(t, printed(t, "export "+path+" -f snapshot -o "+dir+"/one/"),
		"wrote "+dir+"/one/snapshot.pickle   drop it on pytorch.org/memory_viz")
	require.Contains(t, printed(t, "export nosuch -f png,svg -o "+dir+"/none"), "no such file")
	require.NoDirExists(t, dir+"/none")
	require.Contains(t, printed(t, "export "+path+" -f png,svg -o "+dir+"/a/b"), "mkdir "+dir+"/a/b: no such file")
}

// TestHelpDefaults: a flag has one default in the help, and what it says of the default is so.
func TestHelpDefaults(t *testing.T) {
	app := newApp()
	for _, c := range append([]*cli.Command{{Name: "", Flags: app.Flags}}, app.Commands...) {
		for _, f := range c.Flags {
			text := f.String()
			require.LessOrEqual(t, strings.Count(text, "(default"), 1, "%s: %s", c.Name, text)
			require.NotContains(t, text, "default: 0s", "%s: %s", c.Name, text)
		}
	}
}
