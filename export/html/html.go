// SPDX-License-Identifier: Apache-2.0

// Package html writes a trace as one page that needs no network: the curve of memory over time, and for any moment or range a
// flame graph and a table of what was live, allocated or leaked. docs/use/html.md describes what is in it.
package html

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// Input is what Write shows.
type Input struct {
	Model *pagemodel.Model
	// View is of the end: the losses are its.
	View *view.View

	Program string    // command line
	Script  string    // what is run, with the arguments that tell runs apart; it is the title. Empty: Program
	PID     uint32    // of the program; 0: not known
	Facts   []Fact    // of machine and program
	Started time.Time // zero: not known
	Start   uint64    // when the recording began, CLOCK_BOOTTIME nanoseconds: times are shown from here on. 0: the first event
	Exit    uint64    // when the program began to free everything because it ended, CLOCK_BOOTTIME nanoseconds; 0: it did not
	// ExitBytes is what was in use then.
	ExitBytes uint64
	Notes     []string // what a reader must know of the figures: damage, what was dropped

	Lost     uint64                    // events that were lost; event.Unknown
	Verdict  *Verdict                  // what the page begins with; nil: nothing was judged
	Steps    Steps                     // of the program
	Capacity map[event.Device]Capacity // of the devices, where it is known

	// Selection is the moment or the range that is chosen when the page opens; where it is not given, it is the highest peak. Its
	// times are moments of Browse (pagemodel.Options.Asked). The page shows blocks of all sizes.
	Selection view.Selection
}

// VerdictKind says how good or bad a verdict is.
type VerdictKind string

// The kinds of verdicts.
const (
	VerdictBad     VerdictKind = "bad"     // memory ran out
	VerdictGrowing VerdictKind = "growing" // it grows
	VerdictGood    VerdictKind = "good"
	VerdictUnknown VerdictKind = "unknown"
)

// Verdict is the answer, which is above all figures.
type Verdict struct {
	Kind     VerdictKind
	Word     string // "GROWING"
	Text     string // a sentence
	Facts    []Fact // below it
	Findings []Finding
}

// Finding is a part of a verdict. A click on it searches for Search; empty: there is nothing to search for.
type Finding struct {
	Title, Search string
	Lines         []string
}

// Steps are the steps of a program, by the times at which they begin, CLOCK_BOOTTIME nanoseconds.
type Steps struct {
	On    string // what begins one; empty: not known
	First int    // number of the first one
	Begin []uint64
}

// Capacity is the memory of a device, bytes; event.Unknown.
type Capacity struct {
	Total  uint64
	Used   uint64 // by the process at the end, with its context
	Others uint64 // by other processes at the end
}

// Fact is a line of the head.
type Fact struct{ Name, Value string }

//go:embed page
var files embed.FS

// scripts are the parts of the page's program, in their order. They share one scope.
var scripts = []string{"data.js", "model.js", "format.js", "names.js", "stack.js", "curve.js", "flame.js", "segments.js", "table.js",
	"page.js"}

// page is what the template shows.
type page struct {
	Title  string
	Policy string
	Style  template.HTML
	Script template.HTML
	Blocks []template.HTML
}

// element is one whole element. Its text is ours, or base64, which has no character that could end it.
func element(start string, text []byte, end string) template.HTML {
	return template.HTML(start + string(text) + end)
}

// Write writes the page. It is complete in itself: no address of another file is in it.
func Write(w io.Writer, in Input) error {
	if in.Model == nil || in.View == nil {
		return errors.New("page: no trace")
	}
	style, err := files.ReadFile("page/page.css")
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	script, err := script(scripts)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	blocks, err := encode(&in)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	t, err := template.ParseFS(files, "page/page.html", "page/head.html")
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	p := page{
		Title: printable(cmp.Or(in.Script, in.Program)), Policy: policy(style, script), Blocks: blocks,
		Style: element("<style>", style, "</style>"), Script: element("<script>", script, "</script>"),
	}
	if p.Title == "" {
		p.Title = "GPU memory"
	}
	if err := t.ExecuteTemplate(w, "page.html", p); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

// script is all scripts of a page in one function.
func script(names []string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("(() => {\n'use strict';\n")
	for _, name := range names {
		text, err := files.ReadFile("page/" + name)
		if err != nil {
			return nil, err
		}
		b.Write(text)
	}
	b.WriteString("})();\n")
	return b.Bytes(), nil
}

// policy allows this style and this script, and nothing else: no other script, no file, no connection.
func policy(style, script []byte) string {
	hash := func(text []byte) string {
		sum := sha256.Sum256(text)
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return strings.Join([]string{
		"default-src 'none'", "script-src " + hash(script), "style-src " + hash(style), "img-src data:", "base-uri 'none'", "form-action 'none'",
	}, "; ")
}
