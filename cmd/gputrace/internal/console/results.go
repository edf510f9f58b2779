// SPDX-License-Identifier: Apache-2.0

package console

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/screen"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recorder/folder"
)

// Finish says how the end of a recording is printed.
type Finish struct {
	Verbose bool // with all that was counted
	Asked   bool // the further formats were asked for: an error of theirs is an error
}

// Open opens a finished recording for all that is made of it: it is opened once, until another one is, or Close.
func (c *Console) Open(path string, warn func(error)) (*export.Source, error) {
	if c.opened != nil && c.opened.Path == path {
		return c.opened, nil
	}
	c.Close()
	c.line = progress.New(os.Stderr)
	in, err := export.Open(path, c.line.Options(warn))
	if err == nil {
		c.opened = in
	}
	return in, err
}

// Close closes what was opened.
func (c *Console) Close() {
	c.line.Stop()
	if c.opened != nil {
		c.opened.Close() // was only read
		c.opened = nil
	}
}

// First returns what is concluded of the recording of a process, before its files are written, and prints it if the
// process is the only one. views: further files are made of it, which share its replays. Where it cannot be read
// the answer is nil, and Finish prints what is known.
func (c *Console) First(w *os.File, p *folder.Process, views, alone bool, o *export.AnswerOptions) *answer.Answer {
	warn := c.Warning
	if !views { // the recording itself is not what was asked for
		warn = func(error) {}
	}
	in, err := c.Open(p.File(), warn)
	if err != nil {
		return nil
	}
	if alone {
		o.Screen = Screen(w)
		err = in.PrintAnswer(w, o)
		c.printed = err == nil
	} else {
		err = in.MakeAnswer(o)
	}
	if err != nil {
		return nil
	}
	a, err := in.Answer()
	if err != nil {
		return nil
	}
	return a
}

// Finish writes the folder of a recording and prints the summary to w. The error is of what could not be written, else why there is
// nothing to see.
func (c *Console) Finish(w *os.File, r *folder.Results, o *Finish) error {
	dir, err := r.Write()
	c.Close()
	if err := c.results(w, r, dir, err != nil, o); err != nil {
		c.Warning(err)
	}
	if err != nil {
		return err
	}
	c.written(w, r, dir)
	for _, p := range r.Processes() {
		if p.FileErr() != nil { // which was shown when it happened
			return exit.With(exit.Error, errors.New(""))
		}
	}
	return ended(r.ViewError(), r.Err(), o.Asked, c.Warning)
}

// ended is the error of a recording that was written, of one process or of many: further files that were asked for
// and could not be made, else why there is nothing to see. Files that were not asked for are a warning.
func ended(views, nothing error, asked bool, warn func(error)) error {
	switch {
	case views == nil:
	case asked:
		return views
	default:
		warn(views)
	}
	return nothing
}

// results prints what there is to know when a recording ends: of several processes a line each.
func (c *Console) results(w *os.File, r *folder.Results, dir string, unwritten bool, o *Finish) error {
	all := r.Processes()
	if len(all) > 1 {
		return c.job(w, r, dir)
	}
	if !c.printed {
		if err := printProcess(w, all[0], dir, unwritten, o); err != nil {
			return err
		}
	}
	if !c.Many || !o.Verbose {
		return nil
	}
	return table.JobHits(w, r.Job())
}

// job prints what is concluded of a job, and its processes a line each.
func (c *Console) job(w *os.File, r *folder.Results, dir string) error {
	in := &screen.JobInput{Job: r.Answer(), Processes: len(r.Processes()), Counted: r.Job(), Screen: Screen(w)}
	if page := filepath.Join(dir, export.JobPageName); dir != "" && exists(page) {
		in.Page = page
	}
	return screen.PrintJob(w, in)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// printProcess prints what report prints of the recording of a process; without one, or of one that could not be written, what is known.
func printProcess(w *os.File, p *folder.Process, dir string, unwritten bool, o *Finish) error {
	if p.File() == "" || p.FileErr() != nil || unwritten {
		in, held := p.Summary()
		in.Width = Screen(w).Width
		_, err := io.WriteString(w, p.Verdict())
		return errors.Join(err, export.PrintSummary(w, in, held))
	}
	line := progress.New(os.Stderr)
	defer line.Stop()
	in, err := export.Open(p.File(), line.Options(func(error) {}))
	if err != nil {
		return err
	}
	defer in.Close()
	return in.PrintAnswer(w, &export.AnswerOptions{Screen: Screen(w), Verbose: o.Verbose, Path: filepath.Join(dir, p.Folder())})
}

// written says where everything is, and of a job what opens it.
func (c *Console) written(w *os.File, r *folder.Results, dir string) {
	written, _ := filepath.Glob(filepath.Join(dir, "*.*"))
	for i := range written {
		written[i] = filepath.Base(written[i])
	}
	Screen(w).Files(w, "  wrote    ", append([]string{dir + "/:"}, written...))
	all := r.Processes()
	if p := all[0].File(); !c.Many && p != "" && filepath.Dir(p) != filepath.Clean(dir) {
		fmt.Fprintf(w, "  the recording is at %s\n", p)
	}
	const shown = 16 // folders of processes
	for i := 0; c.Many && i < min(shown, len(all)); i++ {
		fmt.Fprintf(w, "           gputrace report %s\n", filepath.Join(dir, all[i].Folder()))
	}
}
