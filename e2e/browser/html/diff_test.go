// SPDX-License-Identifier: Apache-2.0

package html_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/html"
)

// line is memory of a line of train.py.
func line(folder string, n int, source string, bytes int64, blocks uint64) view.Row {
	return view.Row{Name: fmt.Sprintf("train.py:%d", n), Func: "main", File: folder + "/train.py", Line: n, Source: source, Bytes: bytes,
		Blocks: blocks}
}

func compared() *view.Difference {
	before := []view.Row{
		line("/a", 38, "x = self.attention(self.norm(x))", 64<<20, 8), line("/a", 41, "buffer = torch.zeros(1 << 20)", 4<<20, 1),
		line("/a", 60, "loss.backward()", 48<<20, 3), line("/a", 70, "optimizer.step()", 1<<30, 100), {Name: "cuBLAS", Bytes: 8519680, Blocks: 2},
		{Name: stacks.LostEvents, Bytes: -1},
	}
	after := []view.Row{
		line("/b", 41, "x = self.attention(self.norm(x))", 96<<20, 12), line("/b", 42, "y = self.mlp(x)", 3<<20, 96), line("/b", 43, "z", 1, 1),
		line("/b", 70, "optimizer.step()", 1<<30, 100), {Name: "cuBLAS", Bytes: 8519679, Blocks: 1}, {Name: stacks.LostEvents, Bytes: -1},
	}
	return view.Diff(before, after, view.ByLine)
}

func diffPage(in html.DiffInput) func(*bytes.Buffer) error {
	return func(b *bytes.Buffer) error { return html.WriteDiff(b, in) }
}

// TestDiffPage: the page has every row and the totals, sorts and searches them.
func TestDiffPage(t *testing.T) {
	d := compared()
	p := openPage(t, diffPage(html.DiffInput{Difference: d, Before: "old/trace.gputrace, at the end",
		After: "new/trace.gputrace, at the end"}), theme("light"))
	sum := func() string { return p.text(`document.getElementById('rowCount').dataset.bytes`) }
	names := func() []string {
		return eval[[]string](p, `[...document.querySelectorAll('#table tbody td.name')].map((td) => td.textContent)`)
	}
	require.Equal(t, fmt.Sprint(d.Bytes()), sum())
	require.Equal(t, fmt.Sprint(d.Bytes()), p.text(`[...document.querySelectorAll('td.change')].reduce((n, td) => n + `+
		`Number(td.dataset.bytes), 0)`))
	require.Equal(t, "1.1 GiB|1.1 GiB|-17.0 MiB",
		p.text(`['before', 'after', 'change'].map((id) => document.getElementById(id).textContent).join('|')`))
	require.Equal(t, []string{
		"train.py:60 maingone", "train.py:41 mainmoved from train.py:38", "train.py:41 maingone", "train.py:42 mainnew", "cuBLAS",
		"train.py:43 mainnew",
		"train.py:70 main", "[lost events]",
	}, names())
	require.Equal(t, "-1", p.text(`[...document.querySelectorAll('#table tbody tr')].find((r) => `+
		`r.textContent.startsWith('cuBLAS')).cells[5].textContent`), "one block less is not unknown")
	p.shoot("diff")

	p.click(`[data-sort=before]`)
	require.Equal(t, "train.py:70 main", names()[0])
	p.run(chromedp.SendKeys(chromedp.CSS(`#search`), "attention"))
	require.Equal(t, []string{"train.py:41 mainmoved from train.py:38"}, names())
	require.Equal(t, fmt.Sprint(32<<20), sum())
	p.click(`#theme`)
	require.Equal(t, "dark", p.text(`document.documentElement.dataset.theme`))
	p.shoot("diff-dark")
}

// TestDiffPageHostile: names are text.
func TestDiffPageHostile(t *testing.T) {
	var entries []view.Row
	for i, name := range hostile {
		call := view.Call{Name: name, Func: name, File: name, Line: i + 1}
		entries = append(entries, view.Row{Name: name, Func: name, File: name, Line: i + 1, Source: name, Stack: []view.Call{call},
			Bytes: int64(i + 1), Blocks: 1})
	}
	d := view.Diff(nil, entries, view.ByStack)
	p := openPage(t, diffPage(html.DiffInput{Difference: d, Before: hostile[0], After: hostile[1]}))
	require.Equal(t, "What changed · gputrace", p.text(`document.title`))
	require.EqualValues(t, len(hostile), p.number(`document.querySelectorAll('td.name').length`))
	require.Zero(t, p.number(`document.querySelectorAll('main img, main script').length`))
	require.LessOrEqual(t, p.number(`document.documentElement.scrollWidth`), p.number(`window.innerWidth`))
	require.Equal(t, fmt.Sprint(d.Bytes()), p.text(`document.getElementById('rowCount').dataset.bytes`))
}

// maxDiffRows is how many rows a page has; those beyond make up one more.
const maxDiffRows = 20_000

// TestDiffPageLong: many rows are shown bit by bit, and those that are too many add up in one.
func TestDiffPageLong(t *testing.T) {
	var entries []view.Row
	for i := range maxDiffRows + 7 {
		entries = append(entries, view.Row{Name: fmt.Sprintf("f%d", i), Bytes: int64(i + 1), Blocks: 1})
	}
	d := view.Diff(entries[:10], entries, view.ByLine)
	p := openPage(t, diffPage(html.DiffInput{Difference: d}))
	rows := `document.querySelectorAll('#table tbody tr').length`
	require.EqualValues(t, 200, p.number(rows))
	require.Equal(t, fmt.Sprint(d.Bytes()), p.text(`document.getElementById('rowCount').dataset.bytes`))
	p.click(`#more`)
	require.EqualValues(t, 800, p.number(rows))
	p.run(chromedp.SendKeys(chromedp.CSS(`#search`), "more rows"))
	require.EqualValues(t, 1, p.number(rows))
}
