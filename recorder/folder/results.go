// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/notice"
)

// Results is the outcome of a recording, to be written to the folder.
type Results struct {
	*recorder.Results

	folder   *Folder
	all      []*Process  // in the order in which they were found
	answer   *answer.Job // for several processes; nil: not made yet
	viewErrs []error

	firstCalled bool // Views.First was called
}

// Results returns the outcome of a recording; nil for nil.
func (f *Folder) Results(r *recorder.Results) *Results {
	if r == nil {
		return nil
	}
	out := &Results{Results: r, folder: f}
	for _, p := range r.Found() {
		out.all = append(out.all, f.process(p))
	}
	return out
}

// Processes returns the processes that used GPU memory, by rank, then in the order in which they were found. There is at least one.
func (r *Results) Processes() []*Process {
	var out []*Process
	for _, p := range r.Results.Processes() {
		out = append(out, r.folder.process(p))
	}
	return out
}

// Answer returns the answer for several processes, after Write; nil for a single process.
func (r *Results) Answer() *answer.Job {
	if r.answer == nil && len(r.all) > 1 {
		r.answer = export.JobAnswer(r.jobProcesses())
	}
	return r.answer
}

// Job returns the input of the summary of several processes.
func (r *Results) Job() table.JobInput {
	out := table.JobInput{Duration: r.Ended.Sub(r.Began), Hits: r.Hits, Received: r.Received, LostAfter: r.LostAfter}
	for _, p := range r.Processes() {
		totals := p.Totals()
		out.Rows = append(out.Rows, table.JobRows(p.Who()+" "+p.Script(), &totals)...)
	}
	return out
}

// Write writes the folder of results to the requested path. If that fails, it writes to a temporary folder, so that nothing
// is lost, and names that folder in the error. ViewError reports files that could not be made from the recordings.
func (r *Results) Write() (folder string, err error) {
	if err = r.write(r.folder.path); err == nil {
		return r.folder.path, nil
	}
	what := "job"
	if !r.folder.options.Many {
		what = fmt.Sprint(r.all[0].PID())
	}
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		other := filepath.Join(dir, fmt.Sprintf("gputrace.%s.%s", what, r.Ended.Format("20060102-150405")))
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
		if p.file != "" && filepath.Dir(p.file) == filepath.Join(folder.Dir, p.name) {
			p.file = filepath.Join(path, p.name, export.TraceName)
		}
	}
	return nil
}

// createFolder starts the folder of results: the reserved one, or a new one.
func (r *Results) createFolder(path string) (*output.Folder, error) {
	if f := r.folder; f.reserved != nil && path == f.path {
		return f.reserved.Folder()
	}
	return output.CreateFolder(path, r.folder.options.results())
}

// first calls Views.First for all processes, once.
func (r *Results) first(path string) {
	if r.firstCalled || len(r.all) != 1 {
		return
	}
	r.firstCalled = true
	r.all[0].first(path, true)
}

// first calls Views.First for the process, once.
func (p *Process) first(path string, alone bool) {
	v := p.folder.options.Views
	if v == nil || v.First == nil || p.answer != nil || p.file == "" || p.err != nil {
		return
	}
	p.answer = v.First(p, filepath.Join(path, p.name), v.Write != nil && v.wanted(p.Final().Events), alone)
}

// wanted reports whether to write the files for this number of events.
func (v *Views) wanted(events uint64) bool { return v.Asked || events <= maxUnasked }

// fill writes all files of the results.
func (r *Results) fill(folder *output.Folder) error {
	r.viewErrs = nil
	for _, p := range r.all {
		part := folder
		if p.name != "" {
			var err error
			if part, err = folder.Part(p.name); err != nil {
				return err
			}
		}
		if err := r.fillPart(part, p); err != nil {
			return err
		}
	}
	if !r.folder.options.Many {
		return nil
	}
	if err := r.writeProfiles(folder, r.all, r.comments(), r.Began, r.Ended); err != nil {
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
	for _, p := range r.Processes() {
		id := ranks.Identity{Rank: -1, PID: p.PID()}
		if known := p.Rank(); known != nil {
			id.Rank = known.Rank
		}
		f := p.Final()
		all = append(all, export.JobProcess{
			Identity: id, Name: p.Who() + " " + p.Script(), Folder: p.name, Answer: p.Answer(), View: f.View, Held: export.HeldInputs(f.Held),
		})
	}
	return all
}

// fillPart writes the files of a process, and moves the recording to them last.
func (r *Results) fillPart(folder *output.Folder, p *Process) error {
	if len(r.all) > 1 {
		p.first(folder.Dir, false)
	}
	f := p.Final()
	if err := r.writeProfiles(folder, []*Process{p}, p.comments(), f.Began, f.Ended); err != nil {
		return err
	}
	err := p.writeViews(folder) // can take a while: until then the recording stays where it can be found
	if err != nil && r.folder.options.Many {
		err = fmt.Errorf("%s: %w", p.Who(), err)
	}
	if err != nil {
		r.viewErrs = append(r.viewErrs, err)
	}
	return p.adopt(folder)
}

// giveBack saves the recordings from a folder that could not be finished.
func (r *Results) giveBack(folder *output.Folder) error {
	var errs []error
	for _, p := range r.all {
		errs = append(errs, p.giveBack(folder))
	}
	return errors.Join(errs...)
}

// writeProfiles writes the profiles that cover several processes, which are in the order in which they were found.
func (r *Results) writeProfiles(folder *output.Folder, all []*Process, comments []string, start, end time.Time) error {
	detail := pprof.DetailSite
	if r.folder.options.FullStacks {
		detail = pprof.DetailFull
	}
	sorted := all
	if len(all) == 1 {
		summary, _ := all[0].Summary()
		comments = slices.Concat(comments, export.Sentences(all[0].Answer()), table.Comments(summary))
	} else {
		sorted = r.Processes()
		comments = slices.Concat(comments, export.JobSentences(r.Answer()))
	}
	for name, kind := range map[string]pprof.Kind{"inuse.pb.gz": pprof.InUse, "peak.pb.gz": pprof.InUse, "alloc.pb.gz": pprof.Alloc} {
		var parts []pprof.Part
		for _, p := range sorted {
			parts = append(parts, p.part(name))
		}
		in := pprof.Input{
			View: parts[0].View, Joined: parts[0].Joined, Rank: parts[0].Rank, Labels: parts[0].Labels, More: parts[1:],
			Kind: kind, Binary: all[0].Final().Info.Exe,
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
	f := p.Final()
	out := pprof.Part{View: f.View, Rank: p.Rank().Label(), Labels: p.Labels()}
	switch profile {
	case "inuse.pb.gz":
		out.Joined = f.Joined
	case "peak.pb.gz":
		out.View = f.View.AtPeak()
	}
	return out
}

// comments identify a job in a profile.
func (r *Results) comments() []string {
	out := []string{fmt.Sprintf("gputrace %s, %s", r.folder.options.Version, recorder.Processes(len(r.all)))}
	for _, p := range r.Processes() {
		out = append(out, fmt.Sprintf("%s: %s", p.Who(), p.Command()))
	}
	return out
}

// comments identifies the run in a profile. The command line comes from the target, so it is escaped.
func (p *Process) comments() []string {
	found, f := p.Found(), p.Final()
	driver, _ := p.Driver()
	return []string{
		fmt.Sprintf("gputrace %s, %s: %s", p.folder.options.Version, p.Who(), p.Command()),
		fmt.Sprintf("%s, %s, %s", notice.Python(found), notice.Torch(found), notice.Driver(found, driver)),
		fmt.Sprintf("attached at %s for %.1f s", f.Began.Format(time.RFC3339), f.Ended.Sub(f.Began).Seconds()),
	}
}

// writeViews writes the further files of the recording. If one fails, the others are still written.
func (p *Process) writeViews(folder *output.Folder) error {
	v := p.folder.options.Views
	if v == nil || v.Write == nil {
		return nil
	}
	if p.file == "" {
		return errors.New("there is no recording to make the formats of -f from")
	}
	if n := p.Final().Events; !v.wanted(n) {
		return fmt.Errorf("of %d events -f %s would take long: gputrace export makes it of %s", n, v.Names, export.TraceName)
	}
	return v.Write(p.file, folder.Write)
}
