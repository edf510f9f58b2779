// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package dtrace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compile has dtrace for Linux, which is of the same origin, compile a script for a process that does nothing.
func compile(t *testing.T, script string) (string, error) {
	t.Helper()
	folder, err := exec.Command("../../testdata/debian-dtrace.sh").Output()
	require.NoError(t, err, "testdata/debian-dtrace.sh")
	file := filepath.Join(t.TempDir(), "x.d")
	require.NoError(t, os.WriteFile(file, []byte(script), 0o644))
	args := append([]string{"-e"}, Options(os.Getpid(), file)...)
	out, err := exec.Command(filepath.Join(strings.TrimSpace(string(folder)), "bin", "dtrace"), args...).CombinedOutput()
	return string(out), err
}

// anywhere has each clause at a probe that is there: of those of a process that has no such function only the form is looked at.
func anywhere(t *testing.T, script string) string {
	t.Helper()
	probe := regexp.MustCompile(`(?m)^(pid|objc)\$target:[^ ]+`)
	require.Len(t, probe.FindAllString(script, -1), 13)
	return probe.ReplaceAllString(script, "BEGIN")
}

// TestCompiledOnLinux: a real compiler of D takes what is written, of each kind, and none of what is broken.
func TestCompiledOnLinux(t *testing.T) {
	for _, s := range []Script{{}, {Frames: 10}, {Metal: true}} {
		out, err := compile(t, s.Text())
		require.NoError(t, err, "%+v: %s", s, out)
	}
	bodies := anywhere(t, (&Script{Metal: true}).Text())
	out, err := compile(t, bodies)
	require.NoError(t, err, out)
	for _, change := range [][2]string{{"%x|%d|%x|%d", "%x|%d|%s|%d"}, {"arg3 ? 0 : arg4", "arg3 ? 0 : arg40"},
		{"self->from = arg2", "self->from->x = arg2"}} {
		broken := strings.Replace(bodies, change[0], change[1], 1)
		require.NotEqual(t, bodies, broken, fmt.Sprint(change))
		out, err := compile(t, broken)
		require.Error(t, err, "%q for %q: %s", change[1], change[0], out)
	}
	good := (&Script{}).Text()
	for _, change := range [][2]string{
		{"self->size = arg1;", "self->size = ;"}, {"printf(", "print_("}, {"%d|%d", "%s|%d"}, {"/self->in/", "/self->in"},
		{"bufsize=16m", "bufsize=nonsense"}, {"timestamp", "machtimestamp"},
	} {
		broken := strings.Replace(good, change[0], change[1], 1)
		require.NotEqual(t, good, broken, fmt.Sprint(change))
		out, err := compile(t, broken)
		require.Error(t, err, "%q for %q: %s", change[1], change[0], out)
	}
}
