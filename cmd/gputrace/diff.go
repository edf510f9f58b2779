package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/google/pprof/profile"
	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/output"
)

const defaultDiffTop = 20

// diffFormats are the forms in which a difference can be written, the default first.
var diffFormats = []diffFormat{
	{name: "text", write: diffText},
	{name: "json", write: diffJSON},
	{name: "html", write: diffHTML},
	{name: "pprof", binary: true, write: diffPprof},
}

// diffFormat is one of them.
type diffFormat struct {
	name   string
	binary bool
	write  func(w io.Writer, before, after *diffSide, o *diffOptions) error
}

func diffFormatNames() []string {
	var out []string
	for _, f := range diffFormats {
		out = append(out, f.name)
	}
	return out
}

// diffOptions is a parsed diff command line.
type diffOptions struct {
	paths  []string       // one, compared with itself, or two
	at     []event.Moment // none, one or two
	by     view.RowKind
	format diffFormat
	top    int    // rows of the text; 0: all
	output string // file; empty: standard output
	force  bool
}

func diffCommand() *cli.Command {
	return &cli.Command{
		Name:      "diff",
		Usage:     "show what changed between two recordings, snapshots or profiles, or two moments of one recording",
		UsageText: "gputrace diff BEFORE AFTER [--at MOMENT] [--by line|function|stack|layer|device] [-f text|json|html|pprof] [-o FILE]\ngputrace diff FILE --at MOMENT [--at MOMENT]",
		Description: "Lines that moved are found again by their function and text, and files in another folder by how their paths end, where it " +
			"is clear which is meant.\n\nMoments: " + event.MomentUsage + ".",
		Flags: []cli.Flag{
			flags.Moments("at", "compare what is in use at `MOMENT` (default: end); given twice, the second is that of AFTER; of one FILE alone, with the end"),
			rowsFlag(view.RowKindNames[0], "a row for each `WHAT`: "),
			flags.Choice("format,f", diffFormats[0].name, "`FORMAT`: "+flags.Or(diffFormatNames()), diffFormatNames()),
			flags.Count("top", strconv.Itoa(defaultDiffTop), "show the `N` largest changes; 0: all", 0, "rows"),
			outputFlag(), forceFlag(),
		},
		Action: func(c *cli.Context) error {
			o, err := parseDiff(c)
			if err != nil {
				return err
			}
			return diff(&o)
		},
	}
}

func parseDiff(c *cli.Context) (diffOptions, error) {
	o := diffOptions{
		paths: c.Args().Slice(), at: flags.Get[[]event.Moment](c, "at"), force: c.Bool("force"), top: flags.Get[int](c, "top"),
		format: diffFormats[slices.Index(diffFormatNames(), flags.Get[string](c, "format"))],
	}
	switch {
	case len(o.paths) == 0 || len(o.paths) > 2:
		return o, usage("which files? give two, or one and --at; see gputrace diff --help")
	case len(o.at) > 2:
		return o, usage("--at is given %d times: there are two sides", len(o.at))
	case len(o.paths) == 1 && len(o.at) == 0:
		return o, usage("one file: give another one to compare it with, or a moment with --at; see gputrace diff --help")
	}
	var err error
	if o.by, err = view.FindRowKind(flags.Get[string](c, "by")); err != nil {
		return o, err
	}
	if o.output, err = output.File(flags.Get[string](c, "output"), o.force); err != nil {
		return o, err
	}
	return o, output.CheckTerminal(o.output, o.format.binary)
}

// moments are those of the two sides.
func (o *diffOptions) moments() (before, after event.Moment) {
	end := event.Moment{Kind: event.MomentEnd}
	switch {
	case len(o.at) == 2:
		return o.at[0], o.at[1]
	case len(o.at) == 0:
		return end, end
	case len(o.paths) == 1:
		return o.at[0], end
	}
	return o.at[0], o.at[0]
}

// diff compares two files, or two moments of one.
func diff(o *diffOptions) error {
	p := newProgress(os.Stderr)
	defer p.stop()
	files := make([]*diffFile, 0, 2)
	profiles := 0
	for _, path := range o.paths {
		f, err := openDiff(path, p)
		if err != nil {
			return err
		}
		defer f.close()
		files = append(files, f)
		if f.profile != nil {
			profiles++
		}
	}
	if profiles == len(files) && len(o.at) > 0 {
		return usage("--at: a profile is of one moment; give the recording that it was made of")
	}
	at, atAfter := o.moments()
	before, err := files[0].side(at)
	if err != nil {
		return err
	}
	after, err := files[len(files)-1].side(atAfter)
	if err != nil {
		return err
	}
	p.stop()
	return output.Write(o.output, o.force, o.format.binary, func(w io.Writer) error { return o.format.write(w, before, after, o) })
}

// diffFile is one that can be compared: what is opened, or a profile.
type diffFile struct {
	path    string
	opened  *export.Source
	profile *profile.Profile // nil: it is none
	warn    func(error)
}

func openDiff(path string, p *progress) (*diffFile, error) {
	d := &diffFile{path: path, warn: p.warn}
	f, err := os.Open(path)
	if err != nil {
		return nil, coded(exitError, fmt.Errorf("open %s: %w", path, err))
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if head, _ := r.Peek(2); !isProfile(head) {
		d.opened, err = openWatched(path, p, p.warn)
		return d, err
	}
	if d.profile, err = pprof.Parse(r); err != nil {
		if errors.Is(err, pprof.ErrFormat) {
			err = coded(exitInvalid, err)
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

func (d *diffFile) close() {
	if d.opened != nil {
		_ = d.opened.Close()
	}
}

// diffSide is what is compared.
type diffSide struct {
	name    string
	entries []view.Entry
	profile func() (*profile.Profile, error)
}

// side is a moment of a file. A profile has only one.
func (d *diffFile) side(at event.Moment) (*diffSide, error) {
	if d.profile != nil {
		name := d.path
		if d.profile.TimeNanos > 0 {
			name += ", a profile of " + time.Unix(0, d.profile.TimeNanos).UTC().Format(time.RFC3339)
		}
		return &diffSide{name: name, entries: pprof.Entries(d.profile), profile: func() (*profile.Profile, error) { return d.profile, nil }}, nil
	}
	in, err := d.opened.Input(&export.Window{At: at}, version, d.warn)
	if err != nil {
		return nil, err
	}
	view, err := momentView(d.opened.Trace, in.Selection.Moment)
	if err != nil {
		return nil, coded(exitError, fmt.Errorf("%s: %w", d.path, err))
	}
	made := func() (*profile.Profile, error) {
		var b bytes.Buffer
		if err := export.Formats[0].Write(&b, in); err != nil {
			return nil, err
		}
		return pprof.Parse(&b)
	}
	return &diffSide{name: d.path + ", " + in.Moment, entries: view.Entries(), profile: made}, nil
}

// momentView is the view of a moment, without the parts of sites, for which the file would be read again.
func momentView(t *view.Trace, m event.Moment) (*view.View, error) {
	switch {
	case m.Kind == event.MomentPeak:
		return t.Peak(), nil
	case m.IsTime():
		return t.At(m.Time)
	}
	return t.End(), nil
}

func diffText(w io.Writer, before, after *diffSide, o *diffOptions) error {
	d := view.Diff(before.entries, after.entries, o.by)
	return table.Diff(w, table.DiffInput{Difference: d, Before: before.name, After: after.name, Top: o.top})
}

func diffJSON(w io.Writer, before, after *diffSide, o *diffOptions) error {
	d := view.Diff(before.entries, after.entries, o.by)
	return json.WriteDiff(w, json.Diff{Difference: d, Before: before.name, After: after.name})
}

func diffHTML(w io.Writer, before, after *diffSide, o *diffOptions) error {
	d := view.Diff(before.entries, after.entries, o.by)
	return html.WriteDiff(w, html.DiffInput{Difference: d, Before: before.name, After: after.name})
}

func diffPprof(w io.Writer, before, after *diffSide, _ *diffOptions) error {
	base, err := before.profile()
	if err != nil {
		return err
	}
	p, err := after.profile()
	if err != nil {
		return err
	}
	return pprof.WriteDiff(w, base, p)
}
