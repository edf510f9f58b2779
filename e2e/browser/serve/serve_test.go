// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/e2e/browser/internal/chromium"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// Waits for what the page does by itself.
const (
	waits = 30 * time.Second
	poll  = 50 * time.Millisecond
)

// record writes a recording of a program that keeps a block each step.
func record(t *testing.T, dir, program string, started time.Time) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	j := eventtest.NewJob()
	for range 60 {
		j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		j.Alloc(eventtest.Kept, 1<<20)
	}
	w, err := recording.Create(filepath.Join(dir, "trace.gputrace"), &recording.Info{
		Gputrace: "1.2.3", PID: eventtest.PID, Name: "python", Cmdline: []string{"python", program}, Started: started,
	}, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	require.NoError(t, w.Close(&recording.End{Reason: recording.ReasonStopped, Duration: 3 * time.Second}))
}

// served starts gputrace serve and returns its address.
func served(t *testing.T, runs string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "gputrace")
	build := exec.Command("go", "build", "-o", program, "./cmd/gputrace")
	build.Dir = "../../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	cmd := exec.Command(program, "serve", runs)
	lines, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(lines).ReadString('\n')
	require.NoError(t, err)
	return line[strings.Index(line, "http"):len(line)-1] + "/"
}

// tab is the page of a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu   sync.Mutex
	seen []string // messages and errors
}

func open(t *testing.T) *tab {
	t.Helper()
	p := &tab{t: t, ctx: chromium.Start(t)}
	require.NoError(t, chromedp.Do(p.ctx))
	require.NoError(t, chromedp.Listen(p.ctx, p.listen))
	_, err := chromedp.Call(p.ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	return p
}

func (p *tab) listen(e any) {
	if text := chromium.Said(e); text != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen = append(p.seen, text)
	}
}

// messages returns what was seen since the last call.
func (p *tab) messages() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.seen
	p.seen = nil
	return out
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

func (p *tab) text(script string) string {
	p.t.Helper()
	out, err := chromedp.Run(p.ctx, chromedp.Evaluate[string]("String("+script+")"))
	require.NoError(p.t, err, script)
	return out
}

// await waits until a script has a value with a text in it.
func (p *tab) await(script, want string) {
	p.t.Helper()
	has := func() bool { return strings.Contains(p.text(script), want) }
	require.Eventually(p.t, has, waits, poll, "%q is not in %s: %s", want, script, p.text(script))
}

const listText = `document.getElementById('list')?.innerText`

// TestServe: the list has the verdict and shows a recording that appears, and a click opens the page, which has the verdict too.
func TestServe(t *testing.T) {
	runs := t.TempDir()
	record(t, filepath.Join(runs, "first"), `<img src=x onerror=alert(1)>`, time.Now().Add(-time.Hour))
	p, address := open(t), served(t, runs)
	p.run(chromedp.Navigate(address), chromedp.WaitReady(chromedp.CSS(`#list a`)))
	p.await(listText, "GROWING train.py:30 main keeps 1.0 MiB more each step")
	require.Equal(t, "0", p.text(`document.querySelectorAll('main img').length`))
	p.text(`document.querySelector('#list a').focus()`)
	record(t, filepath.Join(runs, "second"), "train.py", time.Now())
	p.await(listText, "second")
	require.Equal(t, "2 recordings of "+runs, p.text(`document.querySelector('h1').textContent`))
	require.Equal(t, "/r/first/", p.text(`document.activeElement.getAttribute('href')`), "the focus stays")
	require.Empty(t, p.messages())

	p.run(chromedp.Click(`//h2/a[text()="second"]`), chromedp.WaitReady(chromedp.CSS(`html[data-ready]`)))
	require.Equal(t, "true", p.text(`document.documentElement.dataset.ready`))
	p.await(`document.getElementById('verdict').innerText`, "GROWING train.py:30 main keeps 1.0 MiB more each step")
	require.Equal(t, "null", p.text(`window.origin`))
	require.Empty(t, p.messages())
}

// TestForeignPage: a page that somebody put into a folder runs, and can ask the server for nothing.
func TestForeignPage(t *testing.T) {
	runs := t.TempDir()
	record(t, filepath.Join(runs, "run"), "train.py", time.Now())
	page := `<!doctype html><title>begun</title><script>
fetch('/api/v1/recordings').then((r) => r.text()).then(() => { document.title = 'read'; }, () => { document.title = 'refused'; });
</script>`
	require.NoError(t, os.WriteFile(filepath.Join(runs, "run", "report.html"), []byte(page), 0o644))
	p, address := open(t), served(t, runs)
	p.run(chromedp.Navigate(address + "r/run/"))
	p.await(`document.title`, "refused")
}

// TestSizes: at every width, light and dark, nothing is wider than the window, and axe-core finds nothing.
func TestSizes(t *testing.T) {
	runs := t.TempDir()
	for i := range 3 {
		dir := filepath.Join(runs, fmt.Sprintf("a_folder_with_a_name_that_is_rather_long_for_a_phone_%d", i))
		record(t, dir, strings.Repeat("train_", 30)+".py", time.Now())
	}
	require.NoError(t, os.WriteFile(filepath.Join(runs, "bad.gputrace"), []byte("no recording"), 0o644))
	script, address := chromium.Axe(t), served(t, runs)
	p := open(t)
	for _, theme := range []string{"light", "dark"} {
		_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
		})
		require.NoError(t, err)
		for _, width := range []int64{400, 800, 1400} {
			p.run(chromedp.EmulateViewport(width, 900), chromedp.Navigate(address))
			p.await(listText, "GROWING")
			require.Equal(t, theme, p.text(`document.documentElement.dataset.theme`))
			require.Equal(t, fmt.Sprint(width), p.text(`Math.max(window.innerWidth, document.documentElement.scrollWidth)`))
			p.text(`(() => { ` + script + ` })()`)
			p.text(`(() => { ` + chromium.AxeRun + ` })()`)
			require.Eventually(t, func() bool { return p.text(`window.found`) != "null" }, waits, poll)
			require.Empty(t, p.text(`window.found`), "%s, %d pixels", theme, width)
			p.shoot(fmt.Sprintf("serve-%d-%s", width, theme))
		}
	}
}

// shoot keeps a picture in the folder of GPUTRACE_SCREENSHOTS.
func (p *tab) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("GPUTRACE_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(p.t, err)
	require.NoError(p.t, os.MkdirAll(dir, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644))
}
