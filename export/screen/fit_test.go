// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScreen(t *testing.T) {
	require.Equal(t, []int{80, 60, 100, 200}, []int{Screen{}.width(), Screen{Width: 20}.width(), Screen{Width: 100}.width(),
		Screen{Width: 900}.width()})
	require.Equal(t, "x", Screen{}.in(bold, "x"))
	require.Equal(t, "\x1b[1mx\x1b[0m", Screen{Color: true}.in(bold, "x"))
	require.Equal(t, 1, visible(Screen{Color: true}.in(bold, "x")))
	require.Empty(t, Screen{Width: 200}.bar(1))
	require.Equal(t, "x", Screen{Color: true}.in("", "x"))
	require.Equal(t, "           ", Screen{Width: 100, Color: true}.noBar())
	require.Equal(t, " █████░░░░░", Screen{Width: 100, Color: true}.bar(0.5))
}

// TestFiles: names go on the next line where there is no room, below the first.
func TestFiles(t *testing.T) {
	var out strings.Builder
	Screen{}.Files(&out, "  wrote    ", strings.Fields("result/: alloc.pb.gz inuse.pb.gz peak.pb.gz report.html trace.gputrace"))
	require.Equal(t, "  wrote    result/: alloc.pb.gz inuse.pb.gz peak.pb.gz report.html\n           trace.gputrace\n", out.String())
}
