// SPDX-License-Identifier: Apache-2.0

// Package folder keeps the recordings of a recorder in a folder of results, and writes profiles and further files beside them.
//
//	Recorder ──▶ Folder, its Keeper: the recordings, and RESULTS.oomN for failed requests
//	         ──▶ recorder.Results ──▶ Results: profiles, further files, the page of a job
package folder

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder/kept"
	"github.com/gputrace/gputrace/recording"
)

// Options says what is written and where.
type Options struct {
	// Path is the folder of results. Empty: nothing is written.
	Path string
	// Force replaces a folder of results that exists. Next uses PATH.2 or the next free name instead.
	Force, Next bool
	// Many puts the results of each process into a folder of its own, as for recorder.Options.Many.
	Many bool
	// MaxSize limits a process's recording, bytes. 0: no limit.
	MaxSize int64
	// MaxAge limits how far back a recording reaches. 0: to the attach.
	MaxAge time.Duration
	// FullStacks writes profiles with every frame.
	FullStacks bool
	// Views writes further files for each recording. nil: none.
	Views *Views
	// Version is gputrace's version, for profiles.
	Version string
	// Warn receives errors that leave the results usable. It must not be nil.
	Warn func(error)
}

// Views writes further files for each recording.
type Views struct {
	// Names are the formats, for people.
	Names string
	// Asked means that the user asked for the files: if one cannot be written, the recording ends with the error.
	// Otherwise that is a warning, and a recording with more than maxUnasked events gets no such files.
	Asked bool
	// First is called with each process whose recording is finished and the folder for its results, before the results
	// are written. It returns the answer for the recording, or nil. views reports whether Write will be called, alone
	// whether the process is the only one. First may be nil.
	First func(p *Process, folder string, views, alone bool) *answer.Answer
	// Write writes the files of a finished recording through write, each by its name. It may be nil.
	Write func(path string, write WriteFile) error
}

// WriteFile writes a file of the results.
type WriteFile func(name string, content func(io.Writer) error) error

// maxUnasked is the largest number of events for which a format is written that the user did not ask for: a page takes
// about a second per million events.
const maxUnasked = 5_000_000

// ProfileNames are the profiles in the folder of results.
var ProfileNames = []string{"inuse.pb.gz", "peak.pb.gz", "alloc.pb.gz"}

// parts matches the name of a folder with the results of one process of a job.
var parts = regexp.MustCompile(`^(rank\d+-)?pid\d+(\.\d+)?$`)

// IsPart reports whether a folder of that name has the results of one process of a job.
func IsPart(name string) bool { return parts.MatchString(name) }

// results returns the files that a folder of results can contain.
func (o *Options) results() *output.Results {
	files := append(append([]string{export.TraceName}, ProfileNames...), export.Files()...)
	return &output.Results{Files: files, Parts: parts, Force: o.Force, Next: o.Next}
}

// Check reports, before anything is traced, why results cannot be written.
func (o *Options) Check() error { return output.CheckFolder(o.Path, o.results()) }

// Folder is a folder of results. It is a recorder.Keeper.
type Folder struct {
	options  Options
	path     string              // of the folder; empty: nothing is written
	reserved *output.Reservation // nil: it is not reserved
	names    map[string]int      // number of uses of each folder name of a process
	known    map[*recorder.Process]*Process
}

var _ recorder.Keeper = (*Folder)(nil)

// New returns a folder of results. Nothing is written before Reserve.
func New(o *Options) *Folder {
	return &Folder{options: *o, path: o.Path, names: map[string]int{}, known: map[*recorder.Process]*Process{}}
}

// Reserve takes the name of the folder.
func (f *Folder) Reserve() (err error) {
	if f.reserved, err = output.Reserve(f.options.Path, f.options.results()); err != nil {
		return err
	}
	f.path = f.reserved.Path()
	return nil
}

// Close releases the name of the folder.
func (f *Folder) Close() error {
	if f.reserved == nil {
		return nil
	}
	return f.reserved.Close()
}

// Process is a process and its part of the results.
type Process struct {
	*recorder.Process

	folder *Folder
	name   string // of its own folder; empty: the folder of results itself
	file   string // path of the recording; empty: none
	err    error  // why the recording is incomplete
	writer *recording.Writer
	answer *answer.Answer // from the recording; nil: none
}

// process returns a process of the recorder with its part.
func (f *Folder) process(p *recorder.Process) *Process {
	known := f.known[p]
	if known == nil {
		known = &Process{Process: p, folder: f}
		if f.options.Many {
			known.name = f.nameOf(p.Rank(), p.PID())
		}
		f.known[p] = known
	}
	return known
}

// nameOf returns a new name for the folder of a process.
func (f *Folder) nameOf(rank *recording.Rank, pid int) string {
	name := fmt.Sprintf("pid%d", pid)
	if rank != nil {
		name = fmt.Sprintf("rank%d-%s", rank.Rank, name)
	}
	if f.names[name]++; f.names[name] > 1 {
		name = fmt.Sprintf("%s.%d", name, f.names[name])
	}
	return name
}

// Folder returns the name of the process's own folder in the folder of results; empty when its results are directly in that.
func (p *Process) Folder() string { return p.name }

// File returns the path of the process's recording; empty when there is none.
func (p *Process) File() string { return p.file }

// FileErr returns why the process's recording is incomplete; nil when it is complete.
func (p *Process) FileErr() error { return p.err }

// Answer returns the answer for the process, from its recording or, without one, from what is known at its end.
func (p *Process) Answer() *answer.Answer {
	if p.answer != nil {
		return p.answer
	}
	return p.Process.Answer()
}

// Verdict returns whether memory grows, as table.Verdict prints it; empty when steps are turned off.
func (p *Process) Verdict() string {
	report := p.Leaks()
	if report == nil {
		return ""
	}
	var text strings.Builder
	_ = table.Verdict(&text, report) // a Builder returns no error
	return text.String()
}

// Summary returns the input of the summary of a process, and of the tables of its holders.
func (p *Process) Summary() (table.Input, []table.HeldInput) {
	f := p.Final()
	return export.Summary(f.View, f.Info, f.End), export.HeldInputs(f.Held)
}

// temporaryFile returns the path of an unfinished recording. It is in the reserved folder of results, where it can be
// found if gputrace is killed.
func (p *Process) temporaryFile() string {
	return filepath.Join(p.folder.path, p.name, export.TraceName)
}

// Create begins the recording file of a process.
func (f *Folder) Create(p *recorder.Process, info *recording.Info, stack func(event.StackID) *event.Stack) (*recording.Writer, error) {
	q := f.process(p)
	if err := q.create(info, stack); err != nil {
		q.err = fmt.Errorf("%w: there will be no %s", err, export.TraceName)
	}
	return q.writer, q.err
}

func (p *Process) create(info *recording.Info, stack func(event.StackID) *event.Stack) error {
	if p.name != "" {
		if err := p.folder.reserved.Part(p.name); err != nil {
			return err
		}
	}
	path, o := p.temporaryFile(), &p.folder.options
	w, err := recording.Create(path, info, stack, &recording.Options{MaxSize: o.MaxSize, MaxAge: o.MaxAge})
	if err != nil {
		return err
	}
	p.writer, p.file = w, path
	return output.GiveToUser(path)
}

// Finish completes the recording of a process with the verdict in words.
func (f *Folder) Finish(p *recorder.Process, end *recording.End) error {
	q := f.process(p)
	end.Verdict = q.Verdict()
	err := q.writer.Close(end)
	if end.NotWritten > 0 {
		err = fmt.Errorf("%w: %d events are not in it", err, end.NotWritten)
	}
	if err != nil {
		q.err = err
	}
	return err
}

// Drop removes an empty recording.
func (f *Folder) Drop(p *recorder.Process) error {
	q := f.process(p)
	if q.file == "" {
		return nil
	}
	err := os.Remove(q.file)
	q.file = ""
	return err
}

// Keep makes a folder next to the folder of results, which explains a failed request.
func (f *Folder) Keep(p *recorder.Process, failure int) (recorder.Kept, error) {
	q := f.process(p)
	path := filepath.Clean(f.path)
	if q.name != "" {
		path += "." + q.name
	}
	dir, err := kept.Make(q.file, path, failure)
	if err != nil {
		return nil, err
	}
	return &saved{q, dir}, nil
}

// saved is the folder of a failed request.
type saved struct {
	process *Process
	dir     string
}

func (s *saved) Name() string   { return s.dir }
func (s *saved) Follow() error  { return kept.Follow(s.dir, s.process.file) }
func (s *saved) Explain() error { return kept.Write(s.dir) }

// adopt moves the recording into the folder of results. If there is no room, the recording stays in its place; that
// is an error only if the folder replaces the one that contains the recording.
func (p *Process) adopt(folder *output.Folder) error {
	if p.file == "" {
		return nil
	}
	to := filepath.Join(folder.Dir, export.TraceName)
	err := os.Rename(p.file, to)
	if errors.Is(err, syscall.EXDEV) {
		if err = kept.Copy(p.file, to); err == nil {
			err = os.Remove(p.file)
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: the recording stays at %s", err, p.file)
		if folder.Replaces(p.file) {
			return err
		}
		p.folder.options.Warn(err)
		return nil
	}
	p.file = to
	return nil
}

// giveBack saves the recording from a folder that could not be finished.
func (p *Process) giveBack(folder *output.Folder) error {
	if p.file == "" || filepath.Dir(p.file) != filepath.Join(folder.Dir, p.name) {
		return nil
	}
	path := p.temporaryFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Rename(p.file, path); err != nil {
		return err
	}
	p.file = path
	return nil
}
