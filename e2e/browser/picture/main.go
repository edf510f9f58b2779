// SPDX-License-Identifier: Apache-2.0

// Command picture opens pages in Chromium. Without flags it prints for each page of gputrace how long it takes until its curve is drawn, in
// milliseconds since it was asked for; with -o it takes a picture of the one page that is given.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var (
	output = flag.String("o", "", "take a picture of the page, and write it to this file")
	width  = flag.Int64("width", 1400, "of the window, pixels")
	height = flag.Int64("height", 900, "of the window, pixels")
	theme  = flag.String("theme", "light", "light or dark")
	script = flag.String("script", "", "run this in the page before its picture is taken")
	ready  = flag.String("ready", `html[data-ready="true"]`, "CSS selector of what is there once the page is drawn")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	program, err := exec.LookPath("chromium")
	if err != nil {
		log.Fatal(err)
	}
	if *output != "" {
		if err := takePicture(program, flag.Arg(0)); err != nil {
			log.Fatalf("take a picture of %s: %v", flag.Arg(0), err)
		}
		return
	}
	for _, file := range flag.Args() {
		ms, err := firstPicture(program, file)
		if err != nil {
			log.Fatalf("open %s: %v", file, err)
		}
		fmt.Println(ms)
	}
}

// open opens a page, and calls do.
func open(program, file string, w, h int64, do func(ctx context.Context) error) error {
	address := file
	if !strings.Contains(file, "://") {
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		address = "file://" + path
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(int(w), int(h)))...)
	defer stop()
	ctx, cancel := chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		return err
	}
	ctx, cancelTime := context.WithTimeout(ctx, time.Minute)
	defer cancelTime()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: *theme}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		return err
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(w, h), chromedp.Navigate(address),
		chromedp.WaitReady(chromedp.CSS(*ready))); err != nil {
		return err
	}
	return do(ctx)
}

func firstPicture(program, file string) (ms float64, err error) {
	err = open(program, file, 1440, 1500, func(ctx context.Context) error {
		ms, err = chromedp.Run(ctx, chromedp.Evaluate[float64](`performance.getEntriesByName('curve')[0].startTime`))
		return err
	})
	return ms, err
}

// settle is how long a page has after the script.
const settle = 500 * time.Millisecond

func takePicture(program, file string) error {
	if file == "" {
		return errors.New("give one page")
	}
	var picture []byte
	err := open(program, file, *width, *height, func(ctx context.Context) error {
		if *script != "" {
			if _, err := chromedp.Run(ctx, chromedp.Evaluate[any](*script+"; 0")); err != nil {
				return err
			}
		}
		time.Sleep(settle)
		var err error
		picture, err = chromedp.Run(ctx, chromedp.CaptureScreenshot())
		return err
	})
	if err != nil {
		return err
	}
	small, err := reduce(picture)
	if err != nil {
		return err
	}
	return os.WriteFile(*output, small, 0o644)
}

// reduce makes a picture of 256 colours: a third of the bytes, and a page has few more.
func reduce(picture []byte) ([]byte, error) {
	in, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	count := map[color.RGBA]int{}
	bounds := in.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(in.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	var colors []color.RGBA
	for c := range count {
		colors = append(colors, c)
	}
	slices.SortFunc(colors, func(x, y color.RGBA) int {
		return cmp.Or(cmp.Compare(count[y], count[x]), cmp.Compare(x.R, y.R), cmp.Compare(x.G, y.G), cmp.Compare(x.B, y.B))
	})
	var palette color.Palette
	for _, c := range colors[:min(256, len(colors))] {
		palette = append(palette, c)
	}
	out := image.NewPaletted(bounds, palette)
	index := map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			i, ok := index[c]
			if !ok {
				i = uint8(palette.Index(c))
				index[c] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&b, out)
	return b.Bytes(), err
}
