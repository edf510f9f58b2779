// SPDX-License-Identifier: Apache-2.0

package html_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	shared "github.com/gputrace/gputrace/e2e/browser/internal/chromium"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/heap"
)

// judged is a page with all that a page can have.
func judged(t *testing.T) html.Input {
	t.Helper()
	s := stream(31, 3000)
	trace := traceOf(t, s)
	in := pageOf(t, trace, nil)
	in.Script, in.Program = "train.py --steps 60", "/opt/venv/bin/python /home/anna/work/train.py --steps 60"
	in.Verdict = &html.Verdict{
		Kind: html.VerdictGrowing, Word: "GROWING", Text: "train.py:41 main keeps 1.1 MiB more each step, since step 2 of 60",
		Findings: []html.Finding{{Title: "losses[0..57].grad_fn", Search: "f3.<locals>",
			Lines: []string{"allocated at train.py:41 main", "append loss.item() instead"}}},
	}
	in.Capacity = map[event.Device]html.Capacity{}
	for i := range in.Model.Parts {
		p := &in.Model.Parts[i]
		in.Capacity[p.Device] = html.Capacity{Total: 2 * p.Peak, Used: p.Peak, Others: p.Peak / 4}
	}
	for i := range 60 {
		in.Steps.Begin = append(in.Steps.Begin, s.Events[i*50].Time)
	}
	in.Steps.On, in.Steps.First = "train.py:30 main", 1
	return in
}

// TestSizes: at every width, light and dark, nothing is wider than the window, and axe-core finds nothing that keeps people from using the
// page: roles, names, contrast (WCAG 2.2, A and AA).
func TestSizes(t *testing.T) {
	startChromium(t)
	script, in := shared.Axe(t), judged(t)
	for _, name := range []string{"light", "dark"} {
		for _, width := range []int64{400, 800, 1400, 2560} {
			p := openSized(t, in, width, 900, theme(name))
			p.click("#segmentsCard summary")
			require.Eventually(t, func() bool { return p.text(`document.getElementById('segmentsText').dataset.used`) != "undefined" }, waits, poll)
			require.LessOrEqual(t, p.number(`document.documentElement.scrollWidth`), uint64(width), "%s, %d pixels", name, width)
			require.NotZero(t, p.number(`document.getElementById('curve').clientWidth`))
			p.shoot(fmt.Sprintf("size-%d-%s", width, name))
			eval[any](p, script+`; 0`)
			eval[any](p, shared.AxeRun)
			require.Eventually(t, func() bool { return p.text(`window.found`) != "null" }, waits, poll)
			require.Empty(t, p.text(`window.found`), "%s, %d pixels", name, width)
		}
	}
}

// TestAnswer: the title is the script, the verdict comes first, and a finding searches for its line.
func TestAnswer(t *testing.T) {
	in := judged(t)
	p := open(t, in)
	require.Equal(t, "train.py --steps 60 · gputrace", eval[string](p, `document.title`))
	require.Equal(t, in.Program, p.text(`document.getElementById('command').textContent`))
	require.Equal(t, "verdict growing", p.text(`document.querySelector('main > section > *').className`), "first")
	require.Contains(t, p.text(`document.getElementById('verdict').innerText`), "GROWING train.py:41 main keeps")
	require.Contains(t, p.text(`document.getElementById('figures').innerText`), ", 50 %")
	require.Contains(t, p.text(`document.getElementById('facts').innerText`), "60, by train.py:30 main")
	all := p.amount()
	p.click(".findingName")
	require.Equal(t, "f3.<locals>", p.text(`document.getElementById('search').value`))
	require.Less(t, p.amount().bytes, all.bytes)
}

// TestSegments: what the map of segments shows are the blocks and segments of a heap that stopped there, to the byte, at any moment.
func TestSegments(t *testing.T) {
	s := stream(34, 3000)
	p := open(t, pageOf(t, traceOf(t, s), nil))
	p.click("#segmentsCard summary")
	for _, at := range []float64{0.1, 0.5, 0.999} {
		p.clickAt(at)
		_, to := p.chosen()
		h := heap.New()
		for i := range s.Events[:to] {
			e := s.Events[i]
			h.Apply(&e)
		}
		var used, reserved uint64
		for b := range h.Blocks() {
			if b.Layer == event.LayerAllocator {
				used += b.Size
			}
		}
		for _, a := range h.Totals().Accounts {
			for _, g := range h.Segments(a.PID, a.Device) {
				reserved += g.Size
			}
		}
		require.Eventually(t, func() bool {
			return p.text(`document.getElementById('segmentsText').dataset.used`) == fmt.Sprint(used)
		}, waits, poll, "after %d events: %d, want %d", to, p.text(`document.getElementById('segmentsText').dataset.used`), used)
		require.Equal(t, reserved, p.number(`document.getElementById('segmentsText').dataset.reserved`))
		require.Equal(t, reserved, p.number(`['used', 'holes', 'free'].reduce((n, k) => n + `+
			`Number(document.getElementById('segmentsText').dataset[k]), 0)`))
	}
	p.shoot("segments")
}

// TestClicks: a name of the legend, a row and a frame filter the same: figure, flame graph, table and curve.
func TestClicks(t *testing.T) {
	p := open(t, pageOf(t, traceOf(t, stream(35, 3000)), nil))
	p.jump("End")
	all := p.amount()
	p.click(`#table tbody tr:nth-child(2)`)
	row := p.amount()
	require.Less(t, row.bytes, all.bytes)
	require.Equal(t, "1", p.text(`document.querySelectorAll('#table tbody tr').length`))
	name := p.text(`document.querySelector('#table tbody td.place').textContent`)
	p.click(`#by button[data-value=device]`)
	require.Equal(t, row, p.amount(), "the filter stays when the table is grouped anew")
	p.click(`#chips button`)
	require.Equal(t, all, p.amount())
	p.click(`#by button[data-value=line]`)
	p.run(chromedp.Click(fmt.Sprintf(`//*[@id="legend"]/button[contains(., %q)]`, name)))
	require.Equal(t, row, p.amount(), "the legend")
	p.run(chromedp.KeyEvent(kb.Escape))
	require.Equal(t, all, p.amount())
	p.click(`#inverted`)
	require.Equal(t, all, p.amount(), "inverted")
	eval[any](p, `document.getElementById('flame').focus(); 0`)
	p.run(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter))
	frame := p.amount()
	require.Positive(t, frame.bytes)
	require.Less(t, frame.bytes, all.bytes, "a frame that was chosen by keys")
	p.run(chromedp.KeyEvent(kb.Escape))
	p.run(chromedp.KeyEvent("/"))
	eval[any](p, `document.getElementById('search').value = ''; 0`)
	p.run(chromedp.SendKeys(chromedp.CSS(`#search`), "zzzz"))
	require.Equal(t, "No match for zzzz. Clear", p.text(`document.getElementById('flameEmpty').innerText.trim()`))
	p.click(`#flameEmpty button`)
	require.Equal(t, all, p.amount())
}

// TestKept: a range opens on what was kept in it, largest first, and the arrows with Shift make one.
func TestKept(t *testing.T) {
	p := open(t, pageOf(t, traceOf(t, stream(36, 3000)), nil))
	p.drag(0.3, 0.8)
	require.Equal(t, "kept", p.text(`document.querySelector('#measures button[aria-pressed=true]').dataset.value`))
	rows := eval[[]float64](p, `[...document.querySelectorAll('td[data-measure=value]')].map((td) => Number(td.dataset.bytes))`)
	require.IsNonIncreasing(t, rows)
	require.Equal(t, "true", p.text(`document.getElementById('curveTip').hidden`), "the tip does not cover the range")
	p.run(chromedp.KeyEvent(kb.Escape), chromedp.KeyEvent(kb.Escape))
	p.jump("End")
	p.clickAt(0.5)
	_, before := p.chosen()
	eval[any](p, `document.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', shiftKey: true })); 0`)
	from, to := p.chosen()
	require.Equal(t, before, from)
	require.Greater(t, to, from)
}

// TestTips: no panel cuts the tip of a graph that is low, and it is inside of the window.
func TestTips(t *testing.T) {
	p := openSized(t, judged(t), 400, 700)
	p.click(`#frames button[data-value=own]`)
	p.run(chromedp.ScrollIntoView(chromedp.CSS(`#flame`)))
	box := eval[[]float64](p, `(() => { const b = document.getElementById('flame').getBoundingClientRect(); return [b.left, b.top]; })()`)
	p.run(chromedp.MouseEvent(chromedp.MouseMoved, box[0]+8, box[1]+30))
	tip := eval[[]float64](p, `(() => { const b = document.getElementById('flameTip').getBoundingClientRect(); return [b.left, b.top, `+
		`b.right, b.bottom]; })()`)
	require.Greater(t, tip[3]-tip[1], 40.0)
	require.GreaterOrEqual(t, tip[0], 0.0)
	require.LessOrEqual(t, tip[2], 400.0)
	require.LessOrEqual(t, tip[3], 700.0)
}

// TestGrowthIsByStep: what a row adds each step is said as it is where steps become faster: time is not what counts.
func TestGrowthIsByStep(t *testing.T) {
	startChromium(t)
	source, err := os.ReadFile("../../../export/html/page/stack.js")
	require.NoError(t, err)
	p := open(t, judged(t))
	got := eval[float64](p, `(() => { const BEFORE = ''; `+string(source)+`
		const steps = [], times = [], course = [];
		for (let i = 0, t = 0; i <= 100; i++, t += i < 60 ? 10 : 3) {
			steps.push(t); times.push(t); course.push(1000 + 7 * i);
		}
		return growthOf(times, course, steps);
	})()`)
	require.InDelta(t, 7, got, 0.01)
}

// TestLayerWithoutName: the layer of all that has no name is called as in pictures: by the one thing that is drawn
// in it, whatever else is empty.
func TestLayerWithoutName(t *testing.T) {
	p := open(t, pageOf(t, traceOf(t, stream(35, 300)), nil))
	script, err := os.ReadFile("../../../export/html/page/stack.js")
	require.NoError(t, err)
	last := func(rows string) string {
		return eval[string](p, `(() => { const BEFORE = '[before attach]'; `+string(script)+`; return Stack.prototype.choose.call({rows: [`+
			rows+`]}).at(-1).name; })()`)
	}
	const freed = `{name: '[freed before the end]', plain: true, before: false, mean: 7, first: 0, last: 0}`
	const empty = `{name: '[holder not known]', plain: true, before: false, mean: 0, first: 0, last: 0}`
	const held = `{name: '[holder not known]', plain: true, before: false, mean: 3, first: 0, last: 0}`
	require.Equal(t, "[freed before the end]", last(freed+","+empty))
	require.Equal(t, "not known", last(freed+","+held))
}
