// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/event"
)

// TestWriteJob: the page links to those of the processes, adds up equal rows, and names of the job are text.
func TestWriteJob(t *testing.T) {
	device := []JobDevice{{"cuda:0", 3 << 30, 5 << 30, event.Unknown}}
	rows := func(name string, bytes uint64, share float64) []ranks.Row {
		return []ranks.Row{{Part: ranks.Part{Name: name, Source: "x = y", Bytes: bytes, Blocks: 4}, Share: share, Which: "all 2"}}
	}
	in := JobInput{
		Title: "a job", When: "in use at the end",
		Verdicts: []JobVerdict{{Kind: VerdictGrowing, Word: "GROWING", Text: "rank 0: <i>", Notes: []string{"held by <u>"}}},
		Processes: []JobProcess{
			{Name: "rank 0 <b>", Link: "rank0/report.html", Verdict: "growing: train.py:41", Devices: device},
			{Name: "rank 1", Link: "javascript:alert(1)", Devices: device},
		},
		Lines: rows("train.py:41 main", 3<<30, 1), Holders: rows("model.*", 512, 0.001),
	}
	var out bytes.Buffer
	require.NoError(t, WriteJob(&out, in))
	text := out.String()
	require.Contains(t, text, `<a href="rank0/report.html">rank 0 &lt;b&gt;</a>`)
	require.NotContains(t, text, "javascript:")
	require.Contains(t, text, "2 processes, 6.0 GiB in use at the end")
	require.Contains(t, text, `data-bytes="3221225472" title="3,221,225,472 B">3.0 GiB</td><td class="number">100 %</td><td class="number `+
		`wide">4</td><td>all 2</td>`)
	require.Contains(t, text, `<td class="number">&lt;1 %</td>`)
	require.Less(t, strings.Index(text, "GROWING</strong> rank 0: &lt;i&gt;"), strings.Index(text, "<table"), "the verdict is first")
	require.Contains(t, text, "held by &lt;u&gt;")
	require.Contains(t, text, ">unknown<")
	for _, address := range []string{"http:", "https:", "//cdn", "@import", "url("} {
		require.NotContains(t, text, address)
	}
	require.Empty(t, regexp.MustCompile(`<script`).FindString(text))
	require.ErrorIs(t, WriteJob(errorWriter{}, in), errFull)
}
