// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"slices"
	"time"
)

// ListInput is what WriteList shows.
type ListInput struct {
	Title string   // one line
	Notes []string // what a reader must know: folders that cannot be read, how a recording is made
	Rows  []ListRow
	// Newer and Older are the addresses of the pages before and after this one; empty: this is the first or the last.
	Newer, Older string
	Up           string // address of the list that contains this one; empty: none does
	Pending      bool   // some verdicts are still to come
}

// ListRow is a recording.
type ListRow struct {
	Name, Link string
	Program    string    // empty: not known
	Processes  int       // of a job; 0: it is not one
	Started    time.Time // zero: not known
	Length     string    // how long it is; empty: not known
	Size       uint64    // of its files, bytes
	State      string    // "recording", "cut off"; empty: it is complete
	Verdicts   []JobVerdict
	Pending    bool   // the verdict is still to come
	Note       string // what is missing in it; empty: nothing
	Error      string // why it cannot be read; empty: it can
	More       []ListLink
}

// ListLink is a link to another file of a recording.
type ListLink struct{ Name, Link string }

// WriteList writes a page with links to the pages of recordings. It needs the server that it is from: it asks for itself again while it is
// open.
func WriteList(w io.Writer, in *ListInput) error {
	var style bytes.Buffer
	for _, name := range []string{"page/page.css", "page/list.css"} {
		text, err := files.ReadFile(name)
		if err != nil {
			return fmt.Errorf("list of recordings: %w", err)
		}
		style.Write(text)
	}
	script, err := script([]string{"list.js"})
	if err != nil {
		return fmt.Errorf("list of recordings: %w", err)
	}
	functions := template.FuncMap{"bytes": sizeText, "exact": exactText, "day": dayText}
	t, err := template.New("list.html").Funcs(functions).ParseFS(files, "page/list.html", "page/head.html")
	if err != nil {
		return fmt.Errorf("list of recordings: %w", err)
	}
	p := struct {
		page
		*ListInput
		Title string // of both
	}{
		page{
			Policy: policy(style.Bytes(), script) + "; connect-src 'self'", Style: element("<style>", style.Bytes(), "</style>"),
			Script: element("<script>", script, "</script>"),
		},
		printableList(in), printable(in.Title),
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("list of recordings: %w", err)
	}
	return nil
}

// printableList returns the list with every name as one printable line.
func printableList(in *ListInput) *ListInput {
	out := *in
	out.Notes, out.Rows = slices.Clone(in.Notes), slices.Clone(in.Rows)
	for i := range out.Notes {
		out.Notes[i] = printable(out.Notes[i])
	}
	for i := range out.Rows {
		r := &out.Rows[i]
		r.Name, r.Program, r.Note, r.Error = printable(r.Name), printable(r.Program), printable(r.Note), printable(r.Error)
		r.Verdicts = slices.Clone(r.Verdicts)
		for k := range r.Verdicts {
			v := &r.Verdicts[k]
			v.Word, v.Text = printable(v.Word), printable(v.Text)
		}
	}
	return &out
}

// dayText is a time of the server's clock.
func dayText(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 MST") }
