// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
)

// TestUnreadIsUnknown: memory from before the attach that no reading names is not called steady where something grows.
func TestUnreadIsUnknown(t *testing.T) {
	var b strings.Builder
	report := &leaks.Report{Verdict: leaks.Growing, Findings: []leaks.Finding{{Bytes: 1}}}
	out := bufio.NewWriter(&b)
	p := &printer{w: out, a: &answer.Answer{Leaks: report, Rest: []answer.Sum{{Name: answer.Unread, Bytes: 2 << 20},
		{Name: "parameters", Bytes: 1 << 20}}}}
	p.rest()
	require.NoError(t, out.Flush())
	require.Equal(t, "  steady   parameters 1.0 MiB\n  unknown  before attach, holders not read 2.0 MiB\n", b.String())
}

// TestNoHolders: where no Python could be read the screen says that holders are not known, and why.
func TestNoHolders(t *testing.T) {
	var text strings.Builder
	out := bufio.NewWriter(&text)
	p := &printer{w: out, a: &answer.Answer{Leaks: &leaks.Report{}, NoHolders: "Python 3.14t is not supported"}}
	p.rest()
	require.NoError(t, out.Flush())
	require.Equal(t, "  holders  not known: Python 3.14t is not supported\n", text.String())
}

// TestHolderText: a frame goes from the begin of a name, and the path that leads through one stays.
func TestHolderText(t *testing.T) {
	require.Equal(t, "kept[0..9]", holderText("train.py:8 main() local kept[0..9]"))
	require.Equal(t, "failures[0..9].__traceback__.fit local batch", holderText("failures[0..9].__traceback__.fit local batch"))
}
