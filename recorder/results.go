// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recording"
)

// ProfileNames are the profiles in the folder of results.
var ProfileNames = []string{"inuse.pb.gz", "peak.pb.gz", "alloc.pb.gz"}

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

// concluded is a process's recording that is complete except for its files.
type concluded struct {
	view     *view.View
	joined   *view.Joined // nil: holders are not known
	summary  table.Input
	held     []trailer.Table
	events   uint64
	snapshot *heap.Snapshot
	verdict  string // text of table.Verdict; empty: steps are turned off
	end      *recording.End
	answer   *answer.Answer // nil: not made yet
}

// conclude ends the recording of a process. It reads the last figures, and must not wait long for them.
func (p *Process) conclude(hits []figures.Hits) {
	if p.frozen.until == 0 {
		p.end = time.Now()
	}
	p.failures.await()
	p.stop()
	p.scans.stop()
	now := p.memory
	snapshot := p.heap.Snapshot()
	view := p.viewOf(snapshot)
	joined := p.scans.joined(view)
	end := p.describeEnd(p.balance(now, view), hits)
	end.Memory.Stats = now.Stats
	p.scans.garbage.See(joined, view)
	if p.growth != nil {
		end.Verdict = p.growth.conclude(joined, end)
	}
	held := p.scans.tables(joined)
	end.Holders, end.Before = trailer.Holders(held), trailer.Before(joined)
	end.Held = trailer.Held(joined)
	end.HolderFacts, end.NoHolders = leaks.Facts(joined), p.scans.noPython()
	if p.growth != nil {
		end.HolderFacts = p.growth.facts
	}
	end.Garbage = p.scans.garbage.Figures()
	p.endFile(end, view)
	p.failures.conclude()
	p.done = &concluded{view, joined, export.Summary(view, p.info, end), held, snapshot.Events, snapshot, end.Verdict, end, nil}
	if n := end.StackRecordsLost; n > 0 {
		p.observer.Warning(fmt.Errorf("%s: %d stacks did not fit the ring: their events have none (--ring-size)", p.Who(), n))
	}
}

// Results is the outcome of a recording.
type Results struct {
	options  *Options
	all      []*Process // in the order in which they were found
	job      table.JobInput
	answer   *answer.Job // for several processes; nil: not made yet
	start    time.Time
	end      time.Time
	outcome  error               // why nothing was recorded; nil: something was
	reserved *output.Reservation // the folder; nil: none
	viewErrs []error

	firstCalled bool // Views.First was called
}

// results collects what was recorded.
func (r *Recorder) results() (*Results, error) {
	r.warnUnseen()
	if len(r.all) == 0 {
		return nil, &Outcome{ErrEndedEarly, "no process was seen to use CUDA. One that ends within a moment of loading it is not seen"}
	}
	out := &Results{options: r.options, reserved: r.reserved, all: r.leaveOutIdle(), start: r.begunAt}
	if !r.options.Many() {
		out.start = out.all[0].start
	}
	for _, p := range out.all { // what is read after the end is not part of the recording
		if p.end.After(out.end) {
			out.end = p.end
		}
	}
	out.outcome = r.verdict(out.all)
	hits, err := r.source.Hits()
	if err != nil {
		r.observer.Warning(err)
	}
	out.job = table.JobInput{Duration: out.end.Sub(out.start), Hits: hits}
	for _, p := range r.all {
		out.job.Received += p.done.events + p.frozen.after
		out.job.LostAfter += p.frozen.lost
	}
	for _, p := range ordered(out.all) {
		totals := p.heap.Totals()
		out.job.Rows = append(out.job.Rows, table.JobRows(p.Who()+" "+p.Script(), &totals)...)
	}
	return out, nil
}

// leaveOutIdle removes processes that used no GPU memory, such as launchers, unless there are no others. A process
// whose events were all lost is kept, because its use is not known.
func (r *Recorder) leaveOutIdle() []*Process {
	idle := func(p *Process) bool { return p.done.events == 0 && p.lost == 0 }
	busy := slices.DeleteFunc(slices.Clone(r.all), idle)
	if len(busy) == 0 {
		return r.all
	}
	for _, p := range r.all {
		if idle(p) {
			r.observer.Event(&Unused{p})
			p.dropFile()
		}
	}
	return busy
}

// verdict returns why nothing was recorded; nil: something was.
func (r *Recorder) verdict(all []*Process) error {
	if slices.ContainsFunc(all, func(p *Process) bool { return p.done.events > 0 }) {
		return nil
	}
	switch {
	case !r.options.Many() && (all[0].End() == Exited || all[0].End() == Execed):
		return &Outcome{ErrEndedEarly, "the target ended before any allocation"}
	case r.interrupted():
		return &Outcome{ErrInterrupted, "interrupted before any allocation"}
	case r.options.Many() && r.source.Ended():
		return &Outcome{ErrEndedEarly, "all processes ended before any allocation"}
	}
	return nil
}

// Err returns why nothing was recorded, as one of the errors of this package, or nil.
func (r *Results) Err() error { return r.outcome }

// Processes returns the processes that used GPU memory, by rank, then in the order in which they were found. There is at least one.
func (r *Results) Processes() []*Process { return ordered(r.all) }

// Answer returns the answer for several processes, after Write; nil for a single process.
func (r *Results) Answer() *answer.Job {
	if r.answer == nil && len(r.all) > 1 {
		r.answer = export.JobAnswer(r.jobProcesses())
	}
	return r.answer
}

// Job returns the input of the summary of several processes.
func (r *Results) Job() table.JobInput { return r.job }

// Summary returns the input of the summary of a process, and of the tables of its holders.
func (p *Process) Summary() (table.Input, []table.HeldInput) {
	return p.done.summary, export.HeldInputs(p.done.held)
}

// Answer returns the answer for the process, from its recording or, without one, from what is known at its end.
func (p *Process) Answer() *answer.Answer {
	if p.done.answer == nil {
		v := p.done.view
		p.done.answer = answer.New(&answer.Input{
			View: v, Now: v, Start: v.Snapshot.First, End: v.Snapshot.Time, Duration: p.end.Sub(p.start), Events: v.Snapshot.Events, Leaks: p.Leaks(),
			Free: trailer.FreeOf(trailer.Driver(p.done.end)), Paused: p.done.end.Paused,
			NoHolders: p.done.end.NoHolders, Garbage: p.done.end.Garbage,
		})
	}
	return p.done.answer
}

// Verdict returns whether memory grows, as table.Verdict prints it; empty when steps are turned off.
func (p *Process) Verdict() string { return p.done.verdict }

// Folder returns the name of the process's own folder in the folder of results; empty when its results are directly in that.
func (p *Process) Folder() string { return p.folder }

// File returns the path of the process's recording; empty when there is none.
func (p *Process) File() string { return p.file }

// FileErr returns why the process's recording is incomplete; nil when it is complete.
func (p *Process) FileErr() error { return p.fileErr }

// Write writes the folder of results to the requested path. If that fails, it writes to a temporary folder, so that nothing
// is lost, and names that folder in the error. ViewError reports files that could not be made from the recordings.
func (r *Results) Write() (folder string, err error) {
	if err = r.write(r.options.Output); err == nil {
		return r.options.Output, nil
	}
	what := "job"
	if !r.options.Many() {
		what = fmt.Sprint(r.all[0].PID())
	}
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		other := filepath.Join(dir, fmt.Sprintf("gputrace.%s.%s", what, r.end.Format("20060102-150405")))
		if r.write(other) == nil {
			return other, fmt.Errorf("%w; the results are in %s instead", err, other)
		}
	}
	return "", err
}

// ViewError returns why further files are missing.
func (r *Results) ViewError() error { return errors.Join(r.viewErrs...) }

// write writes the results: the profiles of all processes together, and the files of each.
func (r *Results) write(path string) error {
	folder, err := r.createFolder(path)
	if err != nil {
		return err
	}
	defer folder.Discard()
	r.first(path)
	if err := r.fill(folder); err != nil {
		return errors.Join(err, r.giveBack(folder))
	}
	if err := folder.Finish(); err != nil {
		return errors.Join(err, r.giveBack(folder))
	}
	for _, p := range r.all {
		if p.file != "" && filepath.Dir(p.file) == filepath.Join(folder.Dir, p.folder) {
			p.file = filepath.Join(path, p.folder, export.TraceName)
		}
	}
	return nil
}

// createFolder starts the folder of results: the reserved one, or a new one.
func (r *Results) createFolder(path string) (*output.Folder, error) {
	if r.reserved != nil && path == r.options.Output {
		return r.reserved.Folder()
	}
	return output.CreateFolder(path, r.options.Results)
}

// first calls Views.First for all processes, once.
func (r *Results) first(path string) {
	v := r.options.Views
	if r.firstCalled || len(r.all) != 1 {
		return
	}
	r.firstCalled = true
	r.all[0].first(v, path, true)
}

// first calls Views.First for the process, once.
func (p *Process) first(v *Views, path string, alone bool) {
	if v == nil || v.First == nil || p.done.answer != nil || p.file == "" || p.fileErr != nil {
		return
	}
	p.done.answer = v.First(p, filepath.Join(path, p.folder), v.Write != nil && v.wanted(p.done.events), alone)
}

// wanted reports whether to write the files for this number of events.
func (v *Views) wanted(events uint64) bool { return v.Asked || events <= maxUnasked }

// fill writes all files of the results.
func (r *Results) fill(folder *output.Folder) error {
	r.viewErrs = nil
	for _, p := range r.all {
		part := folder
		if p.folder != "" {
			var err error
			if part, err = folder.Part(p.folder); err != nil {
				return err
			}
		}
		if err := r.fillPart(part, p); err != nil {
			return err
		}
	}
	if !r.options.Many() {
		return nil
	}
	if err := r.writeProfiles(folder, r.all, r.comments(), r.start, r.end); err != nil {
		return err
	}
	return r.writeJobPage(folder)
}

// writeJobPage writes the page of a job if its processes have pages.
func (r *Results) writeJobPage(folder *output.Folder) error {
	return export.WriteJobPage(folder.Dir, r.jobProcesses(), r.Answer(), folder.Write)
}

// jobProcesses returns the processes as those of a job, by rank.
func (r *Results) jobProcesses() []export.JobProcess {
	var all []export.JobProcess
	for _, p := range ordered(r.all) {
		id := ranks.Identity{Rank: -1, PID: p.PID()}
		if known := p.rank.Recorded(); known != nil {
			id.Rank = known.Rank
		}
		all = append(all, export.JobProcess{
			Identity: id, Name: p.Who() + " " + p.Script(), Folder: p.folder, Answer: p.Answer(), View: p.done.view, Held: export.HeldInputs(p.done.held),
		})
	}
	return all
}

// fillPart writes the files of a process, and moves the recording to them last.
func (r *Results) fillPart(folder *output.Folder, p *Process) error {
	if len(r.all) > 1 {
		p.first(r.options.Views, folder.Dir, false)
	}
	if err := r.writeProfiles(folder, []*Process{p}, p.comments(), p.start, p.end); err != nil {
		return err
	}
	err := p.writeViews(folder) // can take a while: until then the recording stays where it can be found
	if err != nil && r.options.Many() {
		err = fmt.Errorf("%s: %w", p.Who(), err)
	}
	if err != nil {
		r.viewErrs = append(r.viewErrs, err)
	}
	return p.adoptFile(folder)
}

// giveBack saves the recordings from a folder that could not be finished.
func (r *Results) giveBack(folder *output.Folder) error {
	var errs []error
	for _, p := range r.all {
		errs = append(errs, p.giveBackFile(folder))
	}
	return errors.Join(errs...)
}

// writeProfiles writes the profiles that cover several processes.
func (r *Results) writeProfiles(folder *output.Folder, all []*Process, comments []string, start, end time.Time) error {
	detail := pprof.DetailSite
	if r.options.FullStacks {
		detail = pprof.DetailFull
	}
	if len(all) == 1 {
		comments = slices.Concat(comments, export.Sentences(all[0].Answer()), table.Comments(all[0].done.summary))
	} else {
		comments = slices.Concat(comments, export.JobSentences(r.Answer()))
	}
	for name, kind := range map[string]pprof.Kind{"inuse.pb.gz": pprof.InUse, "peak.pb.gz": pprof.InUse, "alloc.pb.gz": pprof.Alloc} {
		var parts []pprof.Part
		for _, p := range ordered(all) {
			parts = append(parts, p.part(name))
		}
		in := pprof.Input{
			View: parts[0].View, Joined: parts[0].Joined, Rank: parts[0].Rank, Labels: parts[0].Labels, More: parts[1:],
			Kind: kind, Binary: all[0].about.Exe,
			Comments: slices.Clone(comments), Time: end, Duration: end.Sub(start), Detail: detail,
		}
		if name == "peak.pb.gz" && len(parts) > 1 {
			in.Comments = append(in.Comments, "each process at its own peak: their sum was never in use at one moment")
		}
		if err := folder.Write(name, func(w io.Writer) error { return pprof.Write(w, in) }); err != nil {
			return err
		}
	}
	return nil
}

// part returns the process's part of a profile.
func (p *Process) part(profile string) pprof.Part {
	out := pprof.Part{View: p.done.view, Rank: p.rank.Recorded().Label(), Labels: p.Labels()}
	switch profile {
	case "inuse.pb.gz":
		out.Joined = p.done.joined
	case "peak.pb.gz":
		out.View = p.done.view.AtPeak()
	}
	return out
}

// comments identify a job in a profile.
func (r *Results) comments() []string {
	out := []string{fmt.Sprintf("gputrace %s, %s", r.options.Version, Processes(len(r.all)))}
	for _, p := range ordered(r.all) {
		out = append(out, fmt.Sprintf("%s: %s", p.Who(), p.Command()))
	}
	return out
}

// comments identifies the run in a profile. The command line comes from the target, so it is escaped.
func (p *Process) comments() []string {
	f := p.target.Found()
	driver, _ := p.target.Driver()
	return []string{
		fmt.Sprintf("gputrace %s, %s: %s", p.options.Version, p.Who(), p.Command()),
		fmt.Sprintf("%s, %s, %s", f.PythonLine(), f.TorchLine(), f.DriverLine(driver)),
		fmt.Sprintf("attached at %s for %.1f s", p.start.Format(time.RFC3339), p.end.Sub(p.start).Seconds()),
	}
}

// writeViews writes the further files of the recording. If one fails, the others are still written.
func (p *Process) writeViews(folder *output.Folder) error {
	v := p.options.Views
	if v == nil || v.Write == nil {
		return nil
	}
	if p.file == "" {
		return errors.New("there is no recording to make the formats of -f from")
	}
	if n := p.done.events; !v.wanted(n) {
		return fmt.Errorf("of %d events -f %s would take long: gputrace export makes it of %s", n, v.Names, export.TraceName)
	}
	return v.Write(p.file, folder.Write)
}

// PythonLine describes the interpreter for people.
func (f *Found) PythonLine() string {
	switch {
	case f.Python != "" && f.Beside != "":
		return fmt.Sprintf("Python %s (lines of %s in the same process are not known)", f.Python, f.Beside)
	case f.Python != "":
		return "Python " + f.Python
	}
	if f.NoPython {
		return "no Python"
	}
	return fmt.Sprintf("Python: native frames only (%v)", f.PythonErr)
}

// TorchLine describes PyTorch for people.
func (f *Found) TorchLine() string {
	switch {
	case f.PyTorch == "" && len(f.Frameworks) > 0:
		return strings.Join(f.Frameworks, " · ")
	case f.PyTorch == "" && len(f.Hooks) > 0 && !f.torch():
		return "no PyTorch"
	case f.PyTorch == "":
		return "PyTorch unknown"
	case f.CUDA == "":
		return "PyTorch " + f.PyTorch
	default:
		return fmt.Sprintf("PyTorch %s (CUDA %s)", f.PyTorch, f.CUDA)
	}
}

// DriverLine returns the driver's version from the name of its library, or otherwise the one that the driver reports.
func (f *Found) DriverLine(driver string) string {
	return "driver " + cmp.Or(f.Driver, driver, "unknown")
}
