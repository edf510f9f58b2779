// SPDX-License-Identifier: Apache-2.0

// Command picture opens pages of gputrace in Chromium and prints for each how long it takes until its curve is drawn, in
// milliseconds since it was asked for.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	program, err := exec.LookPath("chromium")
	if err != nil {
		log.Fatal(err)
	}
	for _, file := range flag.Args() {
		ms, err := firstPicture(program, file)
		if err != nil {
			log.Fatalf("open %s: %v", file, err)
		}
		fmt.Println(ms)
	}
}

func firstPicture(program, file string) (float64, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return 0, err
	}
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
