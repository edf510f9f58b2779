// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServe: what is served of a recording is what report prints, go tool pprof opens its profile, and Ctrl-C ends the server.
func TestServe(t *testing.T) {
	runs := t.TempDir()
	for _, name := range []string{"growing", "steady"} {
		require.NoError(t, os.Rename(filepath.Dir(screenRecording(t, screens[name])), filepath.Join(runs, name)))
	}
	dir, env := program(t)
	cmd := exec.Command(filepath.Join(dir, "gputrace"), "serve", runs)
	cmd.Env = env
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	_, address, found := strings.Cut(strings.TrimSpace(line), "Serving 2 recordings of "+runs+" on ")
	require.True(t, found, line)

	get := func(path string) string {
		r, err := http.Get(address + path)
		require.NoError(t, err)
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", path, body)
		return string(body)
	}
	for _, name := range []string{"growing", "steady"} {
		require.Equal(t, printed(t, "report --brief --json "+filepath.Join(runs, name)), get("/api/v1/recordings/"+name+"/answer"))
		require.Equal(t, printed(t, "report --json "+filepath.Join(runs, name)), get("/r/"+name+"/memory.json"))
		require.Equal(t, printed(t, "export -f html -o - "+filepath.Join(runs, name)), get("/r/"+name+"/"))
	}
	var list any
	require.NoError(t, json.Unmarshal([]byte(get("/api/v1/recordings")), &list))
	require.NoError(t, published(t, "recordings").Validate(list))

	pprof := exec.Command("go", "tool", "pprof", "-top", address+"/r/growing/profile.pb.gz")
	pprof.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	top, err := pprof.Output()
	require.NoError(t, err)
	require.Contains(t, string(top), "Showing nodes accounting for ")
	require.Contains(t, string(top), "Trainer.train")

	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.Empty(t, string(rest))
	require.NoError(t, cmd.Wait())
}
