// SPDX-License-Identifier: Apache-2.0

package html_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

type amount struct{ blocks, bytes uint64 }

func (a amount) plus(blocks, bytes uint64) amount { return amount{a.blocks + blocks, a.bytes + bytes} }

func stream(seed uint64, n int) *eventtest.Stream { return eventtest.Random(seed, n) }

func traceOf(t *testing.T, s *eventtest.Stream) *view.Trace {
	t.Helper()
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	return trace
}

// liveAfter is the blocks of GPU memory that live after so many events, in a heap that stopped there, and what the allocators had
// before the first event.
func liveAfter(t *testing.T, s *eventtest.Stream, n uint64) (sum amount, threads map[uint32]amount) {
	t.Helper()
	h := heap.New()
	tid := map[heap.BlockKey]uint32{}
	for i := range s.Events[:n] {
		e := s.Events[i]
		h.Apply(&e)
		if e.Kind == event.KindAlloc {
			tid[heap.BlockKey{PID: e.PID, Layer: e.Layer, Object: e.Object, Addr: e.Addr, Time: e.Time}] = e.TID
		}
	}
	threads = map[uint32]amount{}
	for b := range h.Blocks() {
		if b.Segment {
			continue
		}
		sum = sum.plus(1, b.Size)
		threads[tid[b.Key()]] = threads[tid[b.Key()]].plus(1, b.Size)
	}
	for _, a := range h.Totals().Accounts {
		sum.bytes += a.Before + uint64(a.Lost)
	}
	return sum, threads
}

// flow is what the events of a range allocated, and what of that is in use at its end; segments aside.
func flow(s *eventtest.Stream, from, to uint64) (allocated, leaked amount) {
	live := map[uint64]uint64{}
	for i, e := range s.Events[:to] {
		segment := i < 2 // as eventtest.Random makes them
		switch {
		case e.Kind == event.KindFree:
			delete(live, e.Addr)
		case e.Kind == event.KindAlloc && uint64(i) >= from && !segment:
			live[e.Addr] = e.Size
			allocated = allocated.plus(1, e.Size)
		}
	}
	for _, size := range live {
		leaked = leaked.plus(1, size)
	}
	return allocated, leaked
}

// Peak and end are the report's, each with its flame graph and table.
func TestPeakAndEnd(t *testing.T) {
	s := stream(21, 3000)
	trace := traceOf(t, s)
	p := open(t, pageOf(t, trace, nil))
	peak, end := trace.Peak(), trace.End()
	for i, a := range peak.Snapshot.Accounts {
		p.choose("part", fmt.Sprint(i))
		p.choose("memory", "0") // torch
		p.jump("Peak " + a.Device.String())
		require.Equal(t, a.Peak, p.amount().bytes)
		require.Equal(t, a.Live.Objects, p.amount().blocks)
		require.Equal(t, a.Peak, p.number(fmt.Sprintf(`document.querySelectorAll('[data-name=peak]')[%d].dataset.bytes`, i)))
		p.jump("End")
		require.Equal(t, end.Snapshot.Accounts[i].Allocated, p.amount().bytes)
	}
	p.choose("part", "-1")
	p.choose("memory", "gpu")
	require.Equal(t, end.Total(), p.amount().bytes)
	require.Equal(t, end.Snapshot.Accounts[0].Allocated+end.Snapshot.Accounts[1].Allocated,
		p.number(`document.querySelector('[data-name=live]').dataset.bytes`))
	require.Equal(t, "true", p.text(`document.getElementById('tiles').hidden || !document.querySelector('[data-name=lost]')`),
		"no card for nothing")
	require.Contains(t, p.text(`document.getElementById('facts').textContent`), "3,000, 0 lost, stacks "+shareComplete(end)+" complete")
	p.shoot("end")
}

func shareComplete(v *view.View) string {
	var complete, all uint64
	for _, u := range v.Stacks() {
		all += u.Bytes
		if u.Status == "complete" {
			complete += u.Bytes
		}
	}
	return fmt.Sprintf("%.0f %%", 100*float64(complete)/float64(all))
}

// A refused request is marked, and says who asked for what.
func TestRefused(t *testing.T) {
	s := stream(29, 3000)
	p := open(t, pageOf(t, traceOf(t, s), nil))
	first := slices.IndexFunc(s.Events, func(e event.Event) bool { return e.Kind == event.KindOutOfMemory })
	p.jump("Out of memory")
	_, to := p.chosen()
	require.EqualValues(t, first+1, to)
	site := heap.Block{PID: s.Events[first].PID, Stack: s.Events[first].Stack}
	require.Contains(t, p.text(`document.getElementById('when').textContent`), "out of memory: 1.0 TiB refused, asked for by "+traceOf(t,
		s).SiteName(&site))
	refused := 0
	for i := range s.Events {
		if s.Events[i].Kind == event.KindOutOfMemory {
			refused++
		}
	}
	require.EqualValues(t, refused, p.number(`parseInt(document.querySelector('[data-name=refused] .value').textContent)`))
}

// A click on the curve shows what a heap that stops there has: with every event a moment, and with fewer.
func TestMoments(t *testing.T) {
	for name, o := range map[string]*pagemodel.Options{"some": {Moments: 100}, "every event": {Moments: 5000}} {
		t.Run(name, func(t *testing.T) {
			s := stream(22, 3000)
			trace := traceOf(t, s)
			p := open(t, pageOf(t, trace, o))
			seen := map[uint64]bool{}
			for _, at := range []float64{0.02, 0.31, 0.5, 0.77, 0.999} {
				p.clickAt(at)
				_, to := p.chosen()
				want, _ := liveAfter(t, s, to)
				require.Equal(t, want, p.amount(), "after %d events", to)
				view, err := trace.At(s.Events[to-1].Time)
				require.NoError(t, err)
				require.Equal(t, view.Total(), p.amount().bytes)
				wantTime := s.Events[0].Time + uint64(at*float64(trace.Last()-trace.First()))
				require.InDelta(t, float64(wantTime), float64(s.Events[to-1].Time), float64(trace.Last()-trace.First())/30,
					"the moment is near the click")
				seen[to] = true
			}
			require.Len(t, seen, 5)
			p.run(chromedp.KeyEvent(kb.ArrowLeft)) // an arrow to the left: back from the last
			_, to := p.chosen()
			require.NotContains(t, seen, to)
		})
	}
}

// A range that is dragged shows what the events in it allocated, and what of that is left.
func TestRange(t *testing.T) {
	s := stream(23, 3000)
	p := open(t, pageOf(t, traceOf(t, s), nil))
	for _, r := range [][2]float64{{0.2, 0.6}, {0.9, 0.85}, {0.05, 0.999}} {
		p.drag(r[0], r[1])
		from, to := p.chosen()
		require.Less(t, from, to)
		allocated, leaked := flow(s, from, to)
		live, _ := liveAfter(t, s, to)
		require.Equal(t, allocated, p.measure("allocated"))
		require.Equal(t, leaked, p.measure("kept"))
		require.Equal(t, live, p.measure("live"))
	}
	p.click(`#measures button[data-value=kept]`)
	p.shoot("range")
	p.run(chromedp.KeyEvent(kb.Escape))
	require.Equal(t, "true", p.text(`document.getElementById('measures').hidden`), "Esc ends the range")
}

// The wheel zooms in at the pointer, where the moments lie further apart then; Esc shows everything again.
func TestZoom(t *testing.T) {
	s := stream(30, 3000)
	p := open(t, pageOf(t, traceOf(t, s), &pagemodel.Options{Moments: 5000}))
	x, y := p.place(0.5)
	p.clickAt(0.5)
	_, before := p.chosen()
	for range 12 {
		eval[any](p, fmt.Sprintf(`document.getElementById('curve').dispatchEvent(new WheelEvent('wheel', {deltaY: -100, clientX: %f, clientY: `+
			`%f, cancelable: true})); 0`, x, y))
	}
	p.clickAt(0.5)
	_, middle := p.chosen()
	require.InDelta(t, float64(before), float64(middle), 30, "the pointer stays where it was")
	p.clickAt(0.999)
	_, right := p.chosen()
	require.Greater(t, right, middle)
	require.Less(t, right, middle+300, "a fourteenth of the trace is shown")
	require.Equal(t, "false", p.text(`document.getElementById('zoomOut').disabled`))
	p.run(chromedp.KeyEvent(kb.Escape))
	require.Equal(t, "true", p.text(`document.getElementById('zoomOut').disabled`))
	p.clickAt(0.999)
	_, right = p.chosen()
	require.Greater(t, right, uint64(2900))
}

// The flame graph has the outermost frames below its root, the largest first; a click shows one of them alone, and the pointer
// tells its exact bytes.
func TestFlame(t *testing.T) {
	s := stream(33, 3000)
	p := open(t, pageOf(t, traceOf(t, s), nil))
	p.jump("End")
	h := heap.New()
	for i := range s.Events {
		e := s.Events[i]
		h.Apply(&e)
	}
	outermost := map[string]amount{}
	for b := range h.Blocks() {
		st := s.Stack(b.Stack)
		if b.Segment || st == nil || len(st.Frames) == 0 {
			continue
		}
		if f := st.Frames[len(st.Frames)-1]; f.Kind == event.FramePython {
			key := fmt.Sprintf("%s %s:%d", f.Func, f.File, f.Line)
			outermost[key] = outermost[key].plus(1, b.Size)
		}
	}
	name, largest := "", amount{}
	for key, a := range outermost {
		if a.bytes > largest.bytes {
			name, largest = key, a
		}
	}
	all := p.amount()
	box := eval[[]float64](p, `(() => { const b = document.getElementById('flame').getBoundingClientRect(); return [b.left, b.top]; })()`)
	x, y := box[0]+8, box[1]+1.5*21
	p.run(chromedp.MouseEvent(chromedp.MouseMoved, x, y))
	tip := p.text(`document.getElementById('flameTip').innerText`)
	function, file, _ := strings.Cut(name, " ")
	require.Contains(t, tip, function)
	require.Contains(t, tip, file)
	require.Equal(t, largest.bytes, p.number(`document.getElementById('flameTip').innerText.match(/([\d,]+) B\n/)[1].replaceAll(',', '')`))
	p.run(chromedp.MouseClickXY(x, y))
	require.Equal(t, largest, amount{p.number(`document.getElementById('flame').dataset.blocks`),
		p.number(`document.getElementById('flame').dataset.bytes`)})
	require.Equal(t, largest, p.amount(), "the table and the figure above are filtered like the flame graph")
	p.run(chromedp.KeyEvent(kb.Escape))
	require.Equal(t, all, p.amount())
}

// Filters, search and the rows of the table narrow down to what a count over the blocks gives.
func TestFilters(t *testing.T) {
	s := stream(24, 3000)
	p := open(t, pageOf(t, traceOf(t, s), nil))
	p.jump("End")
	_, threads := liveAfter(t, s, 3000)
	var sum amount
	for tid, want := range threads {
		p.choose("thread", fmt.Sprint(tid))
		require.Equal(t, want, p.amount(), "thread %d", tid)
		sum = sum.plus(want.blocks, want.bytes)
	}
	p.choose("thread", "-1")
	h := heap.New()
	for i := range s.Events {
		e := s.Events[i]
		h.Apply(&e)
	}
	classes, named, segments := map[string]amount{}, amount{}, amount{}
	for b := range h.Blocks() {
		if b.Segment {
			segments = segments.plus(1, b.Size)
			continue
		}
		class := 1
		for ; uint64(1)<<(class-1) < b.Size; class++ {
		}
		classes[fmt.Sprint(class)] = classes[fmt.Sprint(class)].plus(1, b.Size)
		if st := s.Stack(b.Stack); st != nil && slices.ContainsFunc(st.Frames,
			func(f event.Frame) bool { return strings.HasPrefix(f.Func, "f3.") }) {
			named = named.plus(1, b.Size)
		}
	}
	for class, want := range classes {
		p.choose("class", class)
		require.Equal(t, want, p.amount(), "size class %s", class)
	}
	p.choose("class", "-1")
	p.choose("memory", "2")
	require.Equal(t, segments, p.amount(), "segments")
	p.choose("memory", "gpu")
	p.run(chromedp.KeyEvent("/"))
	require.Equal(t, "search", p.text(`document.activeElement.id`))
	eval[string](p, `document.getElementById('search').value = ''`) // the driver types the key all the same
	p.run(chromedp.SendKeys(chromedp.CSS(`#search`), "F3.<LOCALS>"))
	require.Equal(t, named, p.amount(), "search, without regard to case")
	p.shoot("search")
	p.run(chromedp.SendKeys(chromedp.CSS(`#search`), "no such thing"))
	require.Equal(t, amount{}, p.amount())
	p.run(chromedp.SendKeys(chromedp.CSS(`#search`), kb.Escape))
	all := p.amount()
	require.Greater(t, all.bytes, named.bytes)
	p.click(`#table tbody tr:nth-child(2)`)
	row := amount{p.number(`document.querySelector('tr.on td.blocks').dataset.blocks`),
		p.number(`document.querySelector('tr.on td.bytes').dataset.bytes`)}
	require.Equal(t, row, amount{p.number(`document.getElementById('flame').dataset.blocks`),
		p.number(`document.getElementById('flame').dataset.bytes`)})
	require.Less(t, row.bytes, all.bytes)
	p.shoot("row")
	p.run(chromedp.KeyEvent(kb.Escape))
	require.Equal(t, all, p.amount())
	for _, by := range []string{"holder", "function", "file", "phase", "category", "thread", "size", "device", "memory", "line"} {
		p.click(`#by button[data-value=` + by + `]`)
		require.Equal(t, all, p.amount(), by)
	}
	for _, frames := range []string{"own", "all", "python"} {
		p.click(`#frames button[data-value=` + frames + `]`)
		require.Equal(t, all, p.amount(), frames)
	}
	require.Equal(t, sum, amount{all.blocks, sum.bytes}, "all threads are all blocks")
}

// hostile are names that a program could have to attack who looks at it.
var hostile = []string{
	"</script><script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">", "{{.}}", "${document.title='owned'}",
	"a\x00\x1b[31m\nb\u202ec", strings.Repeat("very_long_", 20_000), "\xff\xfe", "__proto__", "'\"`<!--", "]]>&lt;b&gt;",
}

// onPage is how the page shows a name: in one line, nothing in it moves the text around it, and it ends.
func onPage(name string) string {
	const longest = 1000
	var out []rune
	for _, r := range strings.ToValidUTF8(name, "\ufffd") {
		switch {
		case r == '\n':
			r = ' '
		case !unicode.IsPrint(r):
			r = unicode.ReplacementChar
		}
		out = append(out, r)
	}
	if len(out) > longest {
		out = append(out[:longest-1], '…')
	}
	return string(out)
}

// Names are text: nothing of them runs, and no name is left out.
func TestHostileNames(t *testing.T) {
	s := &eventtest.Stream{Stacks: map[event.StackID]*event.Stack{}}
	for i, name := range hostile {
		id := event.StackID(i + 1)
		s.Stacks[id] = &event.Stack{ID: id, Frames: []event.Frame{{Kind: event.FramePython, Func: name, File: "/tmp/" + name, Line: 1}}}
		s.Events = append(s.Events, event.Event{
			Time: uint64(i + 1), PID: 1, TID: 2, Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: uint64(i+1) << 20, Size: 1 << 10,
			Requested: 1,
			Allocated: uint64(i+1) << 10, Reserved: 1 << 30, Handle: event.Unknown, Context: event.Unknown, Stack: id,
		})
	}
	in := pageOf(t, traceOf(t, s), nil)
	in.Program = hostile[0]
	for _, name := range hostile {
		in.Facts, in.Notes = append(in.Facts, html.Fact{Name: name, Value: name}), append(in.Notes, name)
	}
	p := open(t, in)
	require.Equal(t, hostile[0]+" · gputrace", eval[string](p, `document.title`))
	require.Equal(t, hostile[0], eval[string](p, `document.getElementById('program').textContent`))
	p.jump("End")
	require.EqualValues(t, len(hostile)<<10, p.amount().bytes)
	names := eval[[]string](p, `[...document.querySelectorAll('#table tbody tr')].map((tr) => tr.querySelector('td.name').textContent)`)
	for _, name := range hostile {
		require.Contains(t, names, onPage(name))
	}
	require.Zero(t, p.number(`document.querySelectorAll('main img, main script, main b b').length`))
	for _, name := range hostile {
		for _, r := range onPage(name) {
			require.False(t, r < ' ' || r == '\u202e')
		}
	}
	require.LessOrEqual(t, p.number(`document.documentElement.scrollWidth`), p.number(`window.innerWidth`),
		"a long name is broken, not the page")
	p.shoot("hostile")
}

// Light and dark are the reader's choice; both are drawn.
func TestThemes(t *testing.T) {
	for _, name := range []string{"light", "dark"} {
		p := open(t, pageOf(t, traceOf(t, stream(25, 3000)), nil), theme(name))
		require.Equal(t, name, p.text(`document.documentElement.dataset.theme`))
		ground := p.text(`getComputedStyle(document.body).backgroundColor`)
		drawn := p.number(`new Set(new Uint32Array(document.getElementById('curve').getContext('2d').getImageData(0, 0, 1000, ` +
			`200).data.buffer)).size`)
		require.Greater(t, drawn, uint64(10), "colours of the curve")
		p.shoot(name)
		p.click(`#theme`)
		require.NotEqual(t, ground, p.text(`getComputedStyle(document.body).backgroundColor`))
	}
}

// The page opens with the moment or the range that was asked for.
func TestSelected(t *testing.T) {
	s := stream(26, 3000)
	at, from, to := s.Events[999].Time, s.Events[499].Time, s.Events[1999].Time
	in := pageOf(t, traceOf(t, s), &pagemodel.Options{Moments: 20, Asked: []uint64{at, from, to}})
	in.Selection.Moment = moment.Moment{Kind: moment.SinceStart, Time: at}
	_, chosen := open(t, in).chosen()
	require.EqualValues(t, 1000, chosen)
	in.Selection.Moment = moment.Moment{Kind: moment.End}
	_, chosen = open(t, in).chosen()
	require.EqualValues(t, 3000, chosen)
	in.Selection = view.Selection{From: from, To: to}
	first, last := open(t, in).chosen()
	require.Equal(t, []uint64{500, 2000}, []uint64{first, last})
}

// TestLossIntervals: the times in which events were lost are said, and red in the curve.
func TestLossIntervals(t *testing.T) {
	s := stream(27, 3000)
	in := pageOf(t, traceOf(t, s), nil)
	first, last := s.Events[0].Time, s.Events[2999].Time
	third := (last - first) / 3
	in.Lost = 12
	red := `(() => {
		const c = document.querySelector('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
		let most = 0; // of a row, red pixels
		for (let y = 25 * devicePixelRatio; y < c.height; y++) { // below the marks of refused requests
			let n = 0;
			for (let x = 0; x < c.width; x++) {
				const i = 4 * (y * c.width + x);
				if (d[i] === 0xc9 && d[i + 1] === 0x2a && d[i + 2] === 0x2a) n++; // --bad
			}
			most = Math.max(most, n);
		}
		return String(Math.round(10 * most / c.width));
	})()`
	require.Equal(t, "0", open(t, in).text(red))
	in.View.Snapshot.LossIntervals = []heap.LossInterval{{PID: 1, Loss: event.Loss{From: first + third, To: first + 2*third, Events: 12}}}
	p := open(t, in)
	require.Regexp(t, `between \S+ s and \S+ s`, p.text(`document.querySelector('[data-name=lost]').textContent`))
	require.Equal(t, "3", p.text(red), "tenths of the width")
	p.shoot("losses")
}

// What is not known is unknown, and a trace without anything in it is drawn too.
func TestNothing(t *testing.T) {
	in := pageOf(t, traceOf(t, &eventtest.Stream{}), nil)
	in.Lost, in.Program = event.Unknown, ""
	p := open(t, in)
	require.Contains(t, p.text(`document.getElementById('facts').textContent`), "unknown lost")
	require.Contains(t, p.text(`document.querySelector('[data-name=live]').textContent`), "unknown")
	require.Equal(t, amount{}, p.amount())

	old := &eventtest.Stream{Events: []event.Event{{ // PyTorch 1.9 reports no totals
		Time: 5, PID: 1, TID: 1, Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: 1 << 20, Size: 4096, Requested: event.Unknown,
		Allocated: event.Unknown, Reserved: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
	}}}
	p = open(t, pageOf(t, traceOf(t, old), nil))
	p.jump("End")
	require.Equal(t, amount{1, 4096}, p.amount())
	require.Contains(t, p.text(`document.querySelector('[data-name=reserved]').textContent`), "unknown")
	require.Contains(t, p.text(`document.getElementById('made').textContent`), "PyTorch allocated unknown")

	shared := old.Events[0]
	shared.Layer, shared.Addr, shared.Size, shared.Call = event.LayerShared, 2<<20, event.Unknown, "cuIpcOpenMemHandle"
	p = open(t, pageOf(t, traceOf(t, &eventtest.Stream{Events: []event.Event{old.Events[0], shared}}), nil))
	p.jump("End")
	p.choose("memory", "4")
	require.Equal(t, "unknown", p.text(`document.getElementById('total').textContent`), "an import without a size")
	require.Equal(t, "unknown", p.text(`document.querySelector('td.bytes').textContent`))
	require.Equal(t, "1", p.text(`document.querySelector('td.blocks').textContent`))
}

// A long trace is a small file, and its picture is there at once.
func TestLarge(t *testing.T) {
	s := stream(28, *largeEvents)
	begin := time.Now()
	in := pageOf(t, traceOf(t, s), nil)
	condensed := time.Since(begin)
	var out bytes.Buffer
	require.NoError(t, html.Write(&out, in))
	require.Less(t, out.Len(), 5<<20, "bytes")
	var p *tab
	picture := math.Inf(1)
	for try := 0; try < 3 && picture > 2000; try++ { // other programs run too: the best time counts
		p = open(t, in)
		mark := func(name string) float64 {
			return eval[float64](p, `performance.getEntriesByName('`+name+`')[0].startTime`)
		}
		t.Logf("%d events: %d bytes, condensed in %v, curve after %.0f ms, all after %.0f ms; %d lives, %d moments", *largeEvents, out.Len(),
			condensed,
			mark("curve"), mark("ready"), len(in.Model.Lifetimes), len(in.Model.Moments))
		picture = min(picture, mark("curve"))
	}
	require.Less(t, picture, 2000.0, "milliseconds")
	p.jump("End")
	want, _ := liveAfter(t, s, uint64(*largeEvents))
	require.Equal(t, want, p.amount())
	p.shoot("large")
}
