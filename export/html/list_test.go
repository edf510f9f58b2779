// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWriteList: each recording has its verdict and its links, names are text, and the page may ask its own server only.
func TestWriteList(t *testing.T) {
	in := &ListInput{
		Title: "2 recordings of <runs>", Notes: []string{"a <note>"}, Older: "/?page=2", Up: "/", Pending: true,
		Rows: []ListRow{
			{
				Name: "first <b>", Link: "/r/first/", Program: "train.py \x1b[2J", Processes: 8, Length: "3.0 s", Size: 3 << 30,
				Started: time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC), State: "recording",
				Verdicts: []JobVerdict{{Kind: VerdictGrowing, Word: "GROWING", Text: "keeps <more>"}},
				More:     []ListLink{{"profile", "/r/first/profile.pb.gz"}},
			},
			{Name: "second", Link: "javascript:alert(1)", Error: "it is <damaged>", Note: "a part"},
			{Name: "third", Pending: true},
		},
	}
	var out bytes.Buffer
	require.NoError(t, WriteList(&out, in))
	text := out.String()
	for _, want := range []string{
		"<h1>2 recordings of &lt;runs&gt;</h1>", "<title>2 recordings of &lt;runs&gt; · gputrace</title>", "a &lt;note&gt;",
		`<a href="/?page=2">older</a>`, `<a href="/r/first/">first &lt;b&gt;</a>`, "train.py \uFFFD[2J", "8 processes",
		`datetime="2026-11-28T01:02:03Z"`, "3.0 s long", `title="3,221,225,472 B">3.0 GiB`, `<span class="state">recording</span>`,
		"<strong>GROWING</strong> keeps &lt;more&gt;", "being read …", `<a href="/r/first/profile.pb.gz">profile</a>`,
		"it is &lt;damaged&gt;", `data-pending="true"`, "connect-src &#39;self&#39;",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 1, strings.Count(text, "<time"), "a time that is not known is not shown")
	for _, bad := range []string{"javascript:", "http:", "https:", "//cdn", "@import", "url("} {
		require.NotContains(t, text, bad)
	}
	require.Equal(t, "first <b>", in.Rows[0].Name, "the caller's list stays")
	require.ErrorIs(t, WriteList(errorWriter{}, in), errFull)
}
