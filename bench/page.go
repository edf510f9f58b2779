//go:build linux && amd64

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/chromedp/chromedp"
)

// page has gputrace make the page of the long recording on one core, and opens it.
func (out *recordingResult) page(e *environment, path string) error {
	file := e.unique("report.html")
	cmd := exec.Command(e.gputrace, "export", path, "-f", "html", "-o", file)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gputrace export: %w\n%s", err, text)
	}
	defer os.Remove(file)
	out.pageTime = append(out.pageTime, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	st, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("look at the page: %w", err)
	}
	out.pageSize = append(out.pageSize, float64(st.Size())/1e6)
	program, err := exec.LookPath("chromium")
	if err != nil {
		return nil // the table says "-"
	}
	ms, err := firstPicture(program, file)
	if err != nil {
		return fmt.Errorf("open the page: %w", err)
	}
	out.picture = append(out.picture, ms)
	return nil
}

// firstPicture is how long a page takes in Chromium until its curve is drawn, milliseconds since it was asked for.
func firstPicture(program, file string) (float64, error) {
	ctx, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1440, 1500))...)
	defer stop()
	ctx, cancel := chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		return 0, err
	}
	ctx, cancelTime := context.WithTimeout(ctx, time.Minute)
	defer cancelTime()
	if err := chromedp.Do(ctx, chromedp.Navigate("file://"+file), chromedp.WaitReady(chromedp.CSS(`html[data-ready="true"]`))); err != nil {
		return 0, err
	}
	return chromedp.Run(ctx, chromedp.Evaluate[float64](`performance.getEntriesByName('curve')[0].startTime`))
}
