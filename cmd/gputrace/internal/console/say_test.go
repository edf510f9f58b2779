// SPDX-License-Identifier: Apache-2.0

//go:build linux

package console

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/terminaltest"
)

// TestSayFits: what is said while a recording runs is broken between words on a terminal; a warning is not, it can have a line to copy.
func TestSayFits(t *testing.T) {
	const notice = "  growing: slow_leak.py:17 main keeps 5.0 MiB more each step, since step 1 of 12, 82 % of the growth"
	const warning = "no rights\n  host: sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep /usr/local/bin/gputrace"
	master, slave := terminaltest.Open(t)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 60}))
	c := New(slave, Options{})
	c.Notice(notice)
	c.Warning(errors.New(warning))
	var text string
	for !strings.Contains(text, "bin/gputrace\r\n") {
		b := make([]byte, 4096)
		require.NoError(t, master.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := master.Read(b)
		require.NoError(t, err)
		text += string(b[:n])
	}
	said, warned, _ := strings.Cut(text, "gputrace: warning: ")
	for line := range strings.SplitSeq(said, "\r\n") {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 60, line)
	}
	require.Equal(t, strings.Fields(notice), strings.Fields(said))
	require.Equal(t, warning, strings.TrimSuffix(strings.ReplaceAll(warned, "\r\n", "\n"), "\n"))
}
