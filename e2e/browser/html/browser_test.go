// SPDX-License-Identifier: Apache-2.0

package html_test

import (
	"bytes"
	"context"
	"flag"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/view"
	shared "github.com/gputrace/gputrace/e2e/browser/internal/chromium"
	"github.com/gputrace/gputrace/export/html"
)

var (
	largeEvents = flag.Int("large", 300_000, "events of the trace of TestLarge")
	// screenshots is a folder for pictures of what the tests see; empty: none is made.
	screenshots = os.Getenv("GPUTRACE_SCREENSHOTS")
)

// browserTimeout is for a whole test; the page itself has 2 s to be there.
const browserTimeout = 2 * time.Minute

var chromium struct {
	sync.Once
	ctx  context.Context
	stop func()
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if chromium.stop != nil {
		chromium.stop()
	}
	os.Exit(code)
}

// startChromium starts one browser for all tests. It resolves no name: what is not in the page cannot be loaded.
func startChromium(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is looked at once, not under the race detector again")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			require.NoError(t, err, ".ci/install test")
		}
		t.Skip("there is no chromium: .ci/install test")
	}
	chromium.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1440, 1500),
			chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND"), chromedp.Flag("disable-background-networking", true))
		allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
		var cancel func()
		chromium.ctx, cancel = chromedp.NewContext(allocated)
		chromium.stop = func() {
			cancel()
			stop()
		}
		chromium.err = chromedp.Do(chromium.ctx)
	})
	require.NoError(t, chromium.err)
	return chromium.ctx
}

// tab is a page that is open in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu   sync.Mutex
	seen []string // requests, messages and errors that should not be
}

// open writes a page and opens it. The test fails when the page asks for anything, or says anything on the console.
func open(t *testing.T, in html.Input, media ...*emulation.MediaFeature) *tab {
	t.Helper()
	return openPage(t, func(b *bytes.Buffer) error { return html.Write(b, in) }, media...)
}

// Waits for what the page does by itself.
const (
	waits = 20 * time.Second
	poll  = 20 * time.Millisecond
)

// openSized opens a page in a window of so many pixels.
func openSized(t *testing.T, in html.Input, width, height int64, media ...*emulation.MediaFeature) *tab {
	t.Helper()
	p := open(t, in, media...)
	p.run(chromedp.EmulateViewport(width, height))
	eval[any](p, `window.dispatchEvent(new Event('resize')); 0`)
	return p
}

func openPage(t *testing.T, write func(*bytes.Buffer) error, media ...*emulation.MediaFeature) *tab {
	t.Helper()
	browser := startChromium(t)
	file := filepath.Join(t.TempDir(), "report.html")
	var content bytes.Buffer
	require.NoError(t, write(&content))
	require.NoError(t, os.WriteFile(file, content.Bytes(), 0o644))

	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx)) // the tab exists as long as this context
	ctx, cancelTime := context.WithTimeout(ctx, browserTimeout)
	t.Cleanup(cancelTime)
	p := &tab{t: t, ctx: ctx}
	address := (&url.URL{Scheme: "file", Path: file}).String()
	require.NoError(t, chromedp.Listen(ctx, func(e any) { p.listen(e, address) }))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: media})
	require.NoError(t, err)
	p.run(chromedp.Navigate(address), chromedp.WaitReady(chromedp.CSS(`html[data-ready]`)))
	require.Equal(t, "true", p.text(`document.documentElement.dataset.ready`), p.text(`document.body.textContent.slice(0, 1000)`))
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Empty(t, p.seen)
	})
	return p
}

func (p *tab) listen(e any, address string) {
	text := shared.Said(e)
	if e, ok := e.(*network.EventRequestWillBeSent); ok && e.Request.URL != address && e.Request.URL != "data:," {
		text = "request: " + e.Request.URL
	}
	if text != "" {
		p.mu.Lock()
		p.seen = append(p.seen, text)
		p.mu.Unlock()
	}
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

// eval runs a script in the page.
func eval[T any](p *tab, script string) T {
	p.t.Helper()
	out, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
	require.NoError(p.t, err, script)
	return out
}

func (p *tab) text(script string) string { return eval[string](p, "String("+script+")") }

func (p *tab) number(script string) uint64 {
	p.t.Helper()
	n, err := strconv.ParseUint(p.text(script), 10, 64)
	require.NoError(p.t, err, script)
	return n
}

// amount is what the page shows of a selection: the figure above, the root of the flame graph and the sum of the table.
func (p *tab) amount() amount {
	p.t.Helper()
	a := amount{p.number(`document.getElementById('total').dataset.blocks`), p.number(`document.getElementById('total').dataset.bytes`)}
	if a.bytes > 0 {
		require.Equal(p.t, a, amount{p.number(`document.getElementById('flame').dataset.blocks`),
			p.number(`document.getElementById('flame').dataset.bytes`)}, "flame graph")
	}
	require.Equal(p.t, a.bytes, p.number(`[...document.querySelectorAll('td[data-measure=value]')].reduce((n, td) => n + `+
		`Number(td.dataset.bytes), 0)`), "table")
	return a
}

// measure is one of the three figures of a range.
func (p *tab) measure(name string) amount {
	p.t.Helper()
	p.click(`#measures button[data-value=` + name + `]`)
	return p.amount()
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.run(chromedp.Click(chromedp.CSS(selector)))
}

// jump clicks one of the named moments.
func (p *tab) jump(name string) {
	p.t.Helper()
	p.run(chromedp.Click(`//div[@id="jumps"]/button[text()="` + name + `"]`))
}

// choose chooses from a list; by the value.
func (p *tab) choose(id, value string) {
	p.t.Helper()
	require.Equal(p.t, value, eval[string](p, `(() => { const s = document.getElementById('`+id+`'); s.value = '`+value+
		`'; s.dispatchEvent(new Event('change')); return s.value; })()`))
}

// place is a point of the curve, by its share of the width.
func (p *tab) place(share float64) (x, y float64) {
	p.t.Helper()
	p.run(chromedp.ScrollIntoView(chromedp.CSS(`#curve`)))
	box := eval[[]float64](p, `(() => { const b = document.getElementById('curve').getBoundingClientRect(); return [b.left, b.top, `+
		`b.width, b.height]; })()`)
	return box[0] + 66 + share*(box[2]-66-16), box[1] + box[3]/2
}

// drag presses the mouse at one place of the curve and releases it at another.
func (p *tab) drag(from, to float64) {
	p.t.Helper()
	x, y := p.place(from)
	to, _ = p.place(to)
	p.run(chromedp.MouseEvent(chromedp.MouseMoved, x, y), chromedp.MouseEvent(chromedp.MousePressed, x, y, chromedp.ButtonLeft,
		chromedp.ClickCount(1)),
		chromedp.MouseEvent(chromedp.MouseMoved, (x+to)/2, y, chromedp.ButtonLeft),
		chromedp.MouseEvent(chromedp.MouseMoved, to, y, chromedp.ButtonLeft),
		chromedp.MouseEvent(chromedp.MouseReleased, to, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
}

func (p *tab) clickAt(share float64) {
	p.t.Helper()
	x, y := p.place(share)
	p.run(chromedp.MouseClickXY(x, y))
}

// chosen is how many events come before the moment, or before both ends of the range.
func (p *tab) chosen() (from, to uint64) {
	p.t.Helper()
	if p.text(`document.getElementById('total').dataset.from`) != "" {
		from = p.number(`document.getElementById('total').dataset.from`)
	}
	return from, p.number(`document.getElementById('total').dataset.to`)
}

// shoot keeps a picture of the page.
func (p *tab) shoot(name string) {
	p.t.Helper()
	if screenshots == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(p.t, err)
	require.NoError(p.t, os.MkdirAll(screenshots, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(screenshots, name+".png"), png, 0o644))
}

// theme is what the reader's system says it likes.
func theme(name string) *emulation.MediaFeature {
	return &emulation.MediaFeature{Name: "prefers-color-scheme", Value: name}
}

// pageOf condenses a trace and makes its input.
func pageOf(t *testing.T, trace *view.Trace, o *pagemodel.Options) html.Input {
	t.Helper()
	b, err := pagemodel.New(trace, o)
	require.NoError(t, err)
	return html.Input{Model: b, View: trace.End(), Program: "python train.py", PID: 4242, Lost: 0}
}

// The browser is not asked for what is not there.
func TestBrowserSees(t *testing.T) {
	p := open(t, pageOf(t, traceOf(t, stream(1, 100)), nil))
	_, err := exec.LookPath("chromium")
	require.NoError(t, err)
	for script, want := range map[string]string{
		`console.error('seen')`:                              "console: error",
		`fetch('https://example.invalid/x').catch(() => {})`: "request", // the policy stops it: it is logged, or asked for
		`setTimeout(() => { throw new Error('thrown') })`:    "exception",
	} {
		eval[any](p, script+`; 0`)
		if strings.HasPrefix(want, "request") {
			want = "log: "
		}
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, s := range p.seen {
				if strings.HasPrefix(s, want) {
					return true
				}
			}
			return false
		}, 10*time.Second, 10*time.Millisecond, script)
	}
	p.mu.Lock()
	p.seen = nil
	p.mu.Unlock()
}
