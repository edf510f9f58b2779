// SPDX-License-Identifier: Apache-2.0

// Package compare finds what changed between two recordings, snapshots or profiles, or two moments of one recording.
package compare

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gputrace/gputrace/analysis/leakdiff"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/internal/exit"
)

// File is a file that can be compared: a source, or a profile. Close it.
type File struct {
	path    string
	source  *export.Source
	profile *profile.Profile // nil: it is none
	warn    func(error)
}

// Open opens a file to be compared.
func Open(path string, o *export.OpenOptions) (*File, error) {
	options := export.OpenOptions{}
	if o != nil {
		options = *o
	}
	if options.Warn == nil {
		options.Warn = func(error) {}
	}
	d := &File{path: path, warn: options.Warn}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		d.source, err = export.Open(path, &options) // says what is there
		return d, err
	}
	if err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("open %s: %w", path, err))
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if head, _ := r.Peek(2); !isProfile(head) {
		d.source, err = export.Open(path, &options)
		return d, err
	}
	if d.profile, err = pprof.Parse(r); err != nil {
		if errors.Is(err, pprof.ErrFormat) {
			err = exit.With(exit.Invalid, err)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// isProfile recognises a profile by its first bytes: those of gzip, or of the first field of the message, which all that write
// profiles write first (profile.proto: sample_type = 1).
func isProfile(head []byte) bool {
	return len(head) == 2 && (head[0] == 0x1f && head[1] == 0x8b || head[0] == 1<<3|2)
}

// IsProfile reports whether it is a profile, which is of one moment only.
func (d *File) IsProfile() bool { return d.profile != nil }

// emptied: a program released its memory before it ended if the peak is at least emptied times the memory in use at the end.
const emptied = 100

// IsEmptied reports whether next to nothing of what a recording had at its peak is in use at its end, or before the program ended. Where
// there is memory of PyTorch's, only that counts: libraries keep theirs.
func (d *File) IsEmptied() (bool, error) {
	if d.source == nil {
		return false, nil
	}
	in, err := d.source.Input(&export.Window{}, "", d.warn)
	if err != nil {
		return false, err
	}
	last, err := d.rows(in, view.ByLine)
	if err != nil {
		return false, err
	}
	highest, layer := d.source.Trace.Peak().Rows(), event.LayerAllocator.String()
	peak, end := inUse(highest, layer), inUse(last, layer)
	if peak == 0 {
		peak, end = inUse(highest, ""), inUse(last, "")
	}
	return peak > 0 && end < peak/emptied, nil
}

// inUse is the bytes of a layer; empty: of all.
func inUse(rows []view.Row, layer string) int64 {
	sum := int64(0)
	for _, r := range rows {
		if layer == "" || r.Layer == layer {
			sum += r.Bytes
		}
	}
	return sum
}

// Close closes the file.
func (d *File) Close() {
	if d.source != nil {
		_ = d.source.Close()
	}
}

// Side is what is compared.
type Side struct {
	name    string
	entries []view.Row
	profile func() (*profile.Profile, error)
	leaks   func() (*leaks.Report, error) // nil: it is not all of a recording
}

// Side is a moment of a file, of which a profile has only one, for rows of a kind. version is that of gputrace.
func (d *File) Side(at moment.Moment, by view.RowKind, version string) (*Side, error) {
	if d.profile != nil {
		if by > view.ByDevice {
			return nil, exit.Usage("--by %s: %s is a profile, which has no such rows; give the recording that it was made of", by, d.path)
		}
		name := d.path
		if d.profile.TimeNanos > 0 {
			name += ", a profile of " + time.Unix(0, d.profile.TimeNanos).UTC().Format(time.RFC3339)
		}
		return &Side{name: name, entries: pprof.Rows(d.profile), profile: func() (*profile.Profile, error) { return d.profile, nil }}, nil
	}
	in, err := d.source.Input(&export.Window{At: at}, version, d.warn)
	if err != nil {
		return nil, err
	}
	judged := in.Judged()
	entries, err := d.rows(in, by)
	if err != nil {
		return nil, err
	}
	made := func() (*profile.Profile, error) {
		var b bytes.Buffer
		if err := export.WriteProfile(&b, in); err != nil {
			return nil, err
		}
		return pprof.Parse(&b)
	}
	side := &Side{name: d.path + ", " + in.Moment, entries: entries, profile: made}
	if judged {
		side.leaks = d.source.Leaks
	}
	return side, nil
}

// rows are what is in use. What a recording tells of parts of its sites is looked for only where the rows need it.
func (d *File) rows(in *export.Input, by view.RowKind) ([]view.Row, error) {
	if err := in.GroupBy(by.String()); err != nil {
		return nil, err
	}
	if by.Detailed() {
		v, err := in.View()
		if err != nil {
			return nil, err
		}
		return v.Rows(), nil
	}
	v, err := momentView(d.source.Trace, in.Selection.Moment)
	if err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", d.path, err))
	}
	return v.Rows(), nil
}

// momentView is the view of a moment, without the parts of sites, for which the file would be read again.
func momentView(t *view.Trace, m moment.Moment) (*view.View, error) {
	switch {
	case m.Kind == moment.Peak:
		return t.Peak(), nil
	case m.IsTime():
		return t.At(m.Time)
	}
	return t.End(), nil
}

// Input is what a difference is made of.
type Input struct {
	Before, After *Side
	By            view.RowKind
	Top           int // rows of the text; 0: all
	Width         int // of the screen that the text is for, characters; 0: 80
}

func (in *Input) difference() *view.Difference {
	return view.Diff(in.Before.entries, in.After.entries, in.By)
}

// findings compares the verdicts on two recordings; nil: one side is none, or a moment of it.
func (in *Input) findings() (*leakdiff.Comparison, error) {
	if in.Before.leaks == nil || in.After.leaks == nil {
		return nil, nil
	}
	before, err := in.Before.leaks()
	if err != nil {
		return nil, err
	}
	after, err := in.After.leaks()
	if err != nil {
		return nil, err
	}
	return leakdiff.Compare(before, after), nil
}

// Format is a form in which a difference can be written.
type Format struct {
	Name   string
	Binary bool

	write func(w io.Writer, in *Input) error
}

// Write writes a difference in the form.
func (f *Format) Write(w io.Writer, in *Input) error { return f.write(w, in) }

// Formats are all of them, the default first.
var Formats = []Format{
	{Name: "text", write: diffText},
	{Name: "json", write: diffJSON},
	{Name: "html", write: diffHTML},
	{Name: "pprof", Binary: true, write: diffPprof},
}

// Names are the names of Formats.
func Names() []string {
	var out []string
	for _, f := range Formats {
		out = append(out, f.Name)
	}
	return out
}

func diffText(w io.Writer, in *Input) error {
	found, err := in.findings()
	if err != nil {
		return err
	}
	return table.Diff(w, table.DiffInput{Difference: in.difference(), Before: in.Before.name, After: in.After.name, Top: in.Top,
		Width: in.Width, Findings: found, Verdict: verdict.OfDifference(in.difference())})
}

func diffJSON(w io.Writer, in *Input) error {
	found, err := in.findings()
	if err != nil {
		return err
	}
	return json.WriteDiff(w, json.Diff{Difference: in.difference(), Before: in.Before.name, After: in.After.name, Findings: found,
		Verdict: verdict.OfDifference(in.difference())})
}

func diffHTML(w io.Writer, in *Input) error {
	return html.WriteDiff(w, html.DiffInput{Difference: in.difference(), Before: in.Before.name, After: in.After.name})
}

func diffPprof(w io.Writer, in *Input) error {
	base, err := in.Before.profile()
	if err != nil {
		return err
	}
	p, err := in.After.profile()
	if err != nil {
		return err
	}
	return pprof.WriteDiff(w, base, p)
}

// PeakRows is what was in use at the peak of a recording, or in a profile, and whether it has what it is for.
func (d *File) PeakRows(version string) (rows []view.Row, detailed bool, err error) {
	if d.source != nil {
		rows, err = d.source.PeakRows(true, version)
		return rows, true, err
	}
	side, err := d.Side(moment.Moment{}, view.ByLine, version)
	if err != nil {
		return nil, false, err
	}
	return side.entries, false, nil
}
