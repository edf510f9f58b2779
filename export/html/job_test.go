// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestWriteJob: the page links to those of the processes, adds up equal rows, and names of the job are text.
func TestWriteJob(t *testing.T) {
	device := []JobDevice{{"cuda:0", 3 << 30, 5 << 30, event.Unknown}}
	row := func(name string, bytes uint64) []JobRow { return []JobRow{{name, "x = y", bytes, 2}} }
	in := JobInput{Title: "a job", Processes: []JobProcess{
		{Name: "rank 0 <b>", Link: "rank0/report.html", Verdict: "growing: train.py:41", Devices: device, Lines: row("train.py:41 main", 1<<30), Holders: row("model.*", 512)},
		{Name: "rank 1", Link: "javascript:alert(1)", Devices: device, Lines: row("train.py:41 main", 2<<30)},
	}}
	var out bytes.Buffer
	require.NoError(t, WriteJob(&out, in))
	text := out.String()
	require.Contains(t, text, `<a href="rank0/report.html">rank 0 &lt;b&gt;</a>`)
	require.NotContains(t, text, "javascript:")
	require.Contains(t, text, "2 processes, 6.0 GiB in use at the end")
	require.Equal(t, 1, strings.Count(text, "train.py:41 main<"), "one row for both")
	require.Contains(t, text, `data-bytes="3221225472" title="3,221,225,472 B">3.0 GiB</td><td class="share">100.0 %</td><td class="number">4</td><td class="number">2</td>`)
	require.Contains(t, text, ">unknown<")
	for _, address := range []string{"http:", "https:", "//cdn", "@import", "url("} {
		require.NotContains(t, text, address)
	}
	require.Empty(t, regexp.MustCompile(`<script`).FindString(text))
	require.ErrorIs(t, WriteJob(errorWriter{}, in), errFull)
}
