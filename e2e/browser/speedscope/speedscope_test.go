// SPDX-License-Identifier: Apache-2.0

//go:build linux

package speedscope_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/e2e/browser/internal/chromium"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/folded"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/speedscope"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// small is a view whose figures speedscope, which rounds to two decimals, shows to the byte: less than 1 MiB of each function,
// in multiples of 256 bytes.
func small(t *testing.T) *view.View {
	t.Helper()
	s := eventtest.Random(1, 0)
	allocated := uint64(7 << 10) // from before
	for i := range uint64(200) {
		e := event.Event{
			Time: 1 + i, PID: eventtest.PID, TID: eventtest.PID, Kind: event.KindAlloc, Layer: event.LayerAllocator,
			Device: event.Device{Type: event.DeviceCUDA}, Addr: 1<<40 + i<<20, Size: 512 * (1 + i%5), Stack: event.StackID(i % 25),
			Requested: event.Unknown, Stream: event.Unknown, Handle: event.Unknown, Context: event.Unknown, Reserved: 1 << 30,
		}
		allocated += e.Size
		e.Allocated = allocated
		s.Events = append(s.Events, e)
	}
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	require.Equal(t, allocated, trace.End().Total())
	return trace.End()
}

// release is the folder of speedscope's page.
func release(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../../../testdata/setup.sh", "--print", "speedscope").Output()
	if err != nil {
		chromium.Missing(t, "speedscope is not there: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// shown is what speedscope's table of functions says: the bytes of which a function is the leaf.
type shown struct {
	self map[string]uint64
	sum  uint64
}

// open has speedscope open a file as its command line does, and reads its table.
func open(t *testing.T, ctx context.Context, page, name string, content []byte) shown {
	t.Helper()
	loader := filepath.Join(t.TempDir(), "load.js")
	script := fmt.Sprintf("speedscope.loadFileFromBase64(%q, %q)", name, base64.StdEncoding.EncodeToString(content))
	require.NoError(t, os.WriteFile(loader, []byte(script), 0o600))
	ctx, cancel := chromedp.NewContext(ctx) // a tab
	defer cancel()
	require.NoError(t, chromedp.Do(ctx,
		chromedp.Navigate("file://"+page+"/index.html#localProfilePath="+strings.TrimPrefix(loader, "/")),
		chromedp.WaitVisible("canvas"),
		chromedp.KeyEvent("2"), // left heavy
	))
	keep(t, ctx, name+".png")
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent("3"), chromedp.WaitVisible("table"))) // sandwich
	keep(t, ctx, name+".table.png")
	rows, err := chromedp.Run(ctx, chromedp.Evaluate[[][]string](tableRows))
	require.NoError(t, err)
	fetched, err := chromedp.Run(ctx, chromedp.Evaluate[[]string]("performance.getEntriesByType('resource').map(e => e.name)"))
	require.NoError(t, err)
	for _, url := range fetched {
		require.Regexp(t, "^(file|data|blob):", url, "the page opens without a network")
	}
	return readTable(t, rows)
}

// tableRows returns the cells of speedscope's table of functions.
const tableRows = "[...document.querySelectorAll('table tr')].map(r => [...r.children].map(c => c.innerText))"

// readTable reads rows of total, self and name; the first is the heading. Those of which something is the leaf come first.
func readTable(t *testing.T, rows [][]string) shown {
	t.Helper()
	require.Equal(t, []string{"Total", "Self", "Symbol Name"}, rows[0])
	out := shown{self: map[string]uint64{}}
	for _, row := range rows[1:] {
		if n := parseBytes(t, row[1]); n > 0 {
			out.self[row[2]] += n
			out.sum += n
		}
	}
	return out
}

// units are those of speedscope's ByteValueFormatter.
var units = map[string]float64{"B": 1, "KB": 1 << 10}

// parseBytes reads "1.25 KB (3.9%)", and "1,280 (3.9%)" of a format without units.
func parseBytes(t *testing.T, text string) uint64 {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(text, ",", ""))
	if len(words) == 2 {
		words = []string{words[0], "B", words[1]}
	}
	require.Len(t, words, 3)
	n, err := strconv.ParseFloat(words[0], 64)
	require.NoError(t, err, text)
	require.Contains(t, units, words[1], "a figure that is rounded")
	return uint64(n * units[words[1]])
}

// keep leaves a picture of the page where GPUTRACE_SCREENSHOTS says.
func keep(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	folder := os.Getenv("GPUTRACE_SCREENSHOTS")
	if folder == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), png, 0o600))
}

// TestBrowser: speedscope opens our file, our profile and our folded stacks without a network, and shows what the allocator
// says.
func TestBrowser(t *testing.T) {
	page, ctx := release(t), chromium.Start(t)
	v := small(t)
	var own, profile, lines bytes.Buffer
	require.NoError(t, speedscope.Write(&own, speedscope.Input{Name: "train.py", Profiles: []speedscope.Profile{{Name: "in use", View: v}}}))
	require.NoError(t, pprof.Write(&profile, pprof.Input{View: v}))
	require.NoError(t, folded.Write(&lines, v))
	ours := open(t, ctx, page, "memory.speedscope.json", own.Bytes())
	require.Equal(t, v.Total(), ours.sum)
	require.EqualValues(t, 7<<10, ours.self[stacks.BeforeAttach])
	require.Equal(t, ours, open(t, ctx, page, "inuse.pb.gz", profile.Bytes()))
	require.Equal(t, v.Total(), open(t, ctx, page, "memory.folded", lines.Bytes()).sum)
}
