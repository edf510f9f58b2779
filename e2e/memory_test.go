// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// TestMemoryFlag: the way of reading memory that was asked for is the one that is used, and banner, recording and doctor say which.
func TestMemoryFlag(t *testing.T) {
	for flag, want := range map[string]string{"copy": "memory copied", "in-place": "memory in place"} {
		t.Run(flag, func(t *testing.T) {
			p := startNatives(t, nativesProgram("natives"), "--brief")
			c := startCommand(t, p, "--memory", flag, "-f", "none")
			p.release(t)
			p.done(t)
			c.interrupt(t)
			require.Contains(t, c.stderr.String(), ", "+want+"\n")
			require.NotContains(t, c.stderr.String(), "warning")
			r, err := recording.Open(filepath.Join(c.out(), "trace.gputrace"))
			require.NoError(t, err)
			defer r.Close()
			require.Equal(t, want, r.Info().Memory)
			d := examine(t, 0, nil, "--memory", flag)
			d.works(t)
			state, says := d.says(t, "reading memory")
			require.Equal(t, "ok", state)
			require.Regexp(t, map[string]string{"copy": "^copied, as asked for$", "in-place": "^in place, "}[flag], says)
		})
	}
}

// TestMemoryOfRun: of a program that gputrace starts, too.
func TestMemoryOfRun(t *testing.T) {
	c := newCommand(t)
	c.cmd.Args = []string{env.binary, "run", "--memory", "copy", "-f", "none", "-o", c.out(), "--cache-dir", env.cache, "--",
		nativesProgram("natives"), "--brief", "--log", filepath.Join(c.dir, "log")}
	c.start(t).succeeds(t)
	require.Contains(t, c.stderr.String(), ", memory copied\n")
}

// TestNativeStacksCopied: stacks are the same when memory is copied.
func TestNativeStacksCopied(t *testing.T) {
	o := options()
	o.Memory = directmap.Copy
	checkNativesBy(t, startNatives(t, nativesProgram("natives")), o)
}

// TestSecretStacks: stacks that lie in memory which the kernel itself has not mapped (memfd_secret) are whole: there, what is read in place
// is 0, so an end that a 0 makes is looked at again by copies.
func TestSecretStacks(t *testing.T) {
	for _, m := range []directmap.Mode{directmap.Copy, directmap.Auto} {
		t.Run(m.String(), func(t *testing.T) {
			o := options()
			o.Memory = m
			checkNativesBy(t, startNatives(t, nativesProgram("natives"), "--secret", "100"), o)
		})
	}
}
