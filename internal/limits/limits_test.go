// SPDX-License-Identifier: Apache-2.0

//go:build linux

package limits

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMain is also the program that runs under limits: it raises them, prints what it has, and runs a shell with them restored.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "show" {
		os.Exit(m.Run())
	}
	Raise()
	if low := Check(); low != nil {
		fmt.Println("low:", strings.ReplaceAll(low.Error(), "\n", "|"))
	}
	shell := "ulimit -S -f; ulimit -S -t; ulimit -S -v; ulimit -S -u"
	for _, restored := range []bool{false, true} {
		if restored {
			if err := Restore(Original()); err != nil {
				fmt.Println(err)
			}
		}
		out, err := exec.Command("bash", "-c", shell).Output()
		fmt.Println(strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", " "), err)
	}
}

// under runs this program after a shell command.
func under(t *testing.T, shell string) []string {
	t.Helper()
	out, err := exec.Command("bash", "-c", shell+` && exec "$0" show`, os.Args[0]).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestRaise: soft limits become the hard ones, those of the CPU time some seconds less, and a program that is
// started has them as they were.
func TestRaise(t *testing.T) {
	got := under(t, "ulimit -S -f 2048 && ulimit -H -f 4096 && ulimit -S -t 20 && ulimit -H -t 100 && ulimit -S -v 8388608")
	require.Len(t, got, 2)
	require.True(t, strings.HasPrefix(got[0], "4096 95 unlimited "), got[0])
	require.True(t, strings.HasPrefix(got[1], "2048 20 8388608 "), got[1])
	require.True(t, strings.HasSuffix(got[0], "<nil>") && strings.HasSuffix(got[1], "<nil>"), got)
	require.ErrorContains(t, Restore("x"), "limits")
	require.NoError(t, Restore(""))
}

// TestCheck: each limit that is too low is named, with its value and what raises it.
func TestCheck(t *testing.T) {
	for shell, want := range map[string]string{
		"ulimit -n 64": "low: the limit on open files (RLIMIT_NOFILE) is 64, gputrace needs 320: the kernel's maps and programs are " +
			"files|  ulimit -n 4096, or|  systemd: LimitNOFILE=4096, or|  docker run --ulimit nofile=4096 ...",
		"ulimit -v 2097152": "low: the limit on address space (RLIMIT_AS) is 2 GiB, gputrace needs 4 GiB",
		"ulimit -t 5": "low: the limit on CPU time (RLIMIT_CPU) is 5 s, gputrace needs 10 s: the kernel kills what uses more|  ulimit " +
			"-t unlimited",
		"ulimit -f 64": "low: the limit on size of files (RLIMIT_FSIZE) is 64 KiB",
	} {
		require.True(t, strings.HasPrefix(under(t, shell)[0], want), under(t, shell)[0])
	}
	require.Len(t, under(t, "ulimit -n 1024 && ulimit -t 60 && ulimit -l 0 && ulimit -s 64"), 2)
}

// TestExplain: an error is explained by a limit only if that limit is set.
func TestExplain(t *testing.T) {
	low := Explain(fmt.Errorf("map create: %w", unix.EMFILE))
	require.ErrorIs(t, low, unix.EMFILE)
	require.Contains(t, low.Says, "open files (RLIMIT_NOFILE)")
	require.Contains(t, Explain(unix.ENFILE).Says, "fs.file-max")
	var r unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_AS, &r))
	require.Equal(t, r.Cur != unix.RLIM_INFINITY, Explain(unix.ENOMEM) != nil)
	require.Nil(t, Explain(errors.New("other")))
	require.Nil(t, Explain(nil))
	require.Same(t, low, Explain(fmt.Errorf("attach: %w", low)))
}
