// SPDX-License-Identifier: Apache-2.0

// Package chromium starts browsers for tests.
package chromium

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Missing skips a test for the lack of a tool; in CI that is a failure.
func Missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Start starts a Chromium that reaches nothing but files and 127.0.0.1. It is closed when the test ends.
func Start(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is looked at once, not under the race detector again")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		Missing(t, "no chromium: %v", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1600, 1200),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Said returns what an event says of a page for a person who debugs it, a message, an error or a dialog; empty for other events.
func Said(e any) string {
	switch e := e.(type) {
	case *runtime.EventConsoleAPICalled:
		return "console: " + string(e.Type)
	case *runtime.EventExceptionThrown:
		return "exception: " + e.ExceptionDetails.Text
	case *log.EventEntryAdded:
		return "log: " + e.Entry.Text
	case *page.EventJavascriptDialogOpening:
		return "dialog: " + e.Message
	}
	return ""
}

// Axe returns the script of axe-core, which checks a page for what keeps people from using it. The test is in a folder of e2e/browser.
func Axe(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../../../testdata/setup.sh", "--print", "axe").Output()
	if err != nil {
		Missing(t, "no axe-core: %v", err)
	}
	script, err := os.ReadFile(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}

// AxeRun is a script that runs axe-core, WCAG 2.2 A and AA, and leaves what it found in window.found, empty: nothing.
const AxeRun = `window.found = null; axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }).then((r) => {
	const of = (n) => n.html.slice(0, 200) + ' ' + n.failureSummary;
	window.found = r.violations.map((v) => v.id + ': ' + v.nodes.map(of).join('; ')).join('\n');
}); 0`
