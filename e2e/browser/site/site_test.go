// SPDX-License-Identifier: Apache-2.0

//go:build linux

package site_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/e2e/browser/internal/chromium"
)

// TestSite builds the documentation for users as a site. Each page is there, with its pictures; the search finds a word
// in a browser that reaches nothing but files, and a result opens.
func TestSite(t *testing.T) {
	if testing.Short() {
		t.Skip("a site is built once, not under the race detector again")
	}
	site := filepath.Join(t.TempDir(), "site")
	out, err := exec.Command("../../../deploy/site/build", site).CombinedOutput()
	require.NoError(t, err, "%s", out)
	docs, pages := os.DirFS("../../../docs/use"), 0
	require.NoError(t, fs.WalkDir(docs, ".", func(path string, _ fs.DirEntry, err error) error {
		if page, ok := strings.CutSuffix(path, ".md"); ok {
			pages++
			require.FileExists(t, filepath.Join(site, "use", page+".html"))
		}
		return err
	}))
	require.Greater(t, pages, 30)
	ctx := chromium.Start(t)

	open(t, ctx, "file://"+site+"/index.html", "document.querySelectorAll('.sidebar-tree a').length > 30")
	open(t, ctx, "file://"+site+"/search.html?q=expandable_segments", "document.querySelector('#search-results li a')")
	result, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.querySelector('#search-results li a').href"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(result, "file://"+site), result)
	open(t, ctx, result, "document.readyState == 'complete' && document.querySelector('h1')")
	foreign, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](
		"[...document.querySelectorAll('[src], link[rel=stylesheet]')].map(e => e.src || e.href).filter(u => !/^(file|data):/.test(u))"))
	require.NoError(t, err)
	require.Empty(t, foreign, "the page opens without a network")
	broken, err := chromedp.Run(ctx, chromedp.Evaluate[int]("[...document.images].filter(i => !i.naturalWidth).length"))
	require.NoError(t, err)
	require.Zero(t, broken)
}

// open opens a page, and awaits that an expression is true there.
func open(t *testing.T, ctx context.Context, url, until string) {
	t.Helper()
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url)))
	require.Eventually(t, func() bool {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+until+")"))
		return err == nil && ok
	}, time.Minute, 100*time.Millisecond, "%s: %s", url, until)
}
