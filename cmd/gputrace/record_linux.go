//go:build amd64

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/tracer"
)

// batch is how many events are taken from the tracer at once.
const batch = 4096

// session is one recording in progress.
type session struct {
	opts    recordOptions
	target  *process.Process
	name    string // of the program
	exe     string
	cmdline []string
	cwd     string        // of the target, at the attach
	files   *process.Root // of the target, also when it has ended; nil: they cannot be read
	tracer  *tracer.Tracer
	heap    *ledger
	info    *recording.Info // of the recording
	books   books
	driver  *driver
	resync  *resync
	naming  *naming
	lost    lossWatch
	start   time.Time
	end     time.Time
	signal  os.Signal
	ending  chan struct{} // closed when the recording is to end
	screen  *screen
	out     io.Writer // for the summary
	rank    rank      // of a job; zero: not known
	folder  string    // in that of the job; empty: the process is traced alone
	// turns bounds how many processes of a job are searched for holders at a time; nil: this is the only one.
	turns chan struct{}

	trace     string // where the recording is; empty: there is none
	viewErr   error  // why a format of -f is missing
	limited   bool   // it was said that there are too many stacks
	announced bool
	readyErr  error
}

// record runs one recording from attach to files.
func record(o recordOptions) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	// A reader of our output that goes away must not cost the profiles. SIGUSR1 means something while we record.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGUSR1)

	if o.isJob() {
		return recordJob(o, signals)
	}
	p, err := process.Open(o.pid)
	if err != nil {
		return explain(err, o)
	}
	s := newSession(o, p, p.About(), openDriver(), newScreen(os.Stderr))
	defer s.closeFiles()
	if err := s.attach(signals); err != nil {
		return explain(err, o)
	}
	defer s.tracer.Close()
	s.lost.looked = s.tracer.Found().Attached
	dropRights(s.tracer.Session, s.screen)
	s.begin()
	s.screen.banner(s)
	go s.stopOn(signals)
	if err := s.drain(); err != nil {
		s.screen.warn(err) // what was captured is still written
	}
	if s.readyErr != nil {
		return s.readyErr
	}
	return s.finish()
}

// tracerMemory is how the tracer is to read memory.
func (o *recordOptions) tracerMemory() tracer.Memory {
	m, _ := tracer.ParseMemory(o.memory) // was checked when the command line was read
	return m
}

func newSession(o recordOptions, p *process.Process, about *process.About, d *driver, sc *screen) *session {
	s := &session{opts: o, target: p, driver: d, ending: make(chan struct{}), screen: sc, out: os.Stdout}
	s.heap = &ledger{Heap: heap.New(), warn: s.screen.warn}
	s.name, s.cmdline, s.exe, s.cwd = about.Name, about.Cmdline, about.Exe, about.Cwd
	s.rank = rankOf(about.Environ)
	s.files, _ = p.Root() // nil: not readable
	return s
}

// closeFiles gives up the way to the target's files.
func (s *session) closeFiles() {
	if s.files != nil {
		s.files.Close()
	}
}

// begin starts all that goes on beside the events, once the tracer is there.
func (s *session) begin() {
	s.startTrace()
	s.resync = newResync(s)
	s.naming = newNaming(s)
	s.readBooks()
}

// attach starts the tracer; with --wait, as soon as there is something to trace.
func (s *session) attach(signals <-chan os.Signal) error {
	options := &tracer.Options{
		RingBytes: s.opts.ringBytes, FreeStacks: s.opts.freeStacks, MaxStacks: s.opts.maxStacks, CacheDir: s.opts.cacheDir, Memory: s.opts.tracerMemory(),
	}
	for waiting := false; ; waiting = true {
		t, err := tracer.Start(s.target, options)
		if err == nil {
			s.tracer = t
			s.start = time.Now()
			s.driver.look(s.target)
			return nil
		}
		if waiting && !s.target.Alive() {
			return coded(exitTargetEnded, fmt.Errorf("pid %d ended before it used CUDA", s.target.PID))
		}
		if !s.opts.wait || !errors.Is(err, tracer.ErrNoCUDA) {
			return err
		}
		if !waiting {
			s.screen.say("waiting for pid %d (%s) to load a CUDA library", s.target.PID, s.name)
		}
		select {
		case <-signals:
			return coded(exitInterrupted, errors.New("interrupted before there was anything to trace"))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// announce tells scripts that the probes are live, once what lived before is known, or cannot be for now.
func (s *session) announce() error {
	if s.announced || !s.resync.looked() && time.Since(s.start) < firstLook {
		return nil
	}
	s.announced = true
	return writeReadyFile(s.opts.readyFile)
}

// writeReadyFile makes the file that tells scripts so. Empty path: none.
func writeReadyFile(path string) error {
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return output.GiveToUser(path)
}

// lastCheck is how long the end of a recording may be put off, to compare the live set with the allocator's books while the
// probes are still there.
const lastCheck = 3 * time.Second

// patience is how long the end may be put off for all that is done then.
func (s *session) patience() time.Duration {
	if s.opts.noNames {
		return lastCheck
	}
	return lastNames
}

// firstLook is how long it is put off to say that the probes are live, because the allocator's books are being read.
const firstLook = 2 * time.Second

// stopOn ends the recording at the first signal or after the duration; at a second signal at once.
func (s *session) stopOn(signals <-chan os.Signal) {
	var timeout <-chan time.Time
	if s.opts.duration > 0 {
		timeout = time.After(s.opts.duration)
	}
	select {
	case s.signal = <-signals:
	case <-timeout:
	}
	close(s.ending)
	select {
	case <-signals:
	case <-time.After(s.patience()):
	}
	s.tracer.Stop()
}

// drainGC is how much garbage may pile up while we trace, percent of what is in use. The job's machine needs its memory more than
// we need the time: little garbage is made, and a collection of a small heap takes milliseconds.
const drainGC = 25

// drain feeds the heap until the trace ends, with one line a second for people.
func (s *session) drain() error {
	defer debug.SetGCPercent(debug.SetGCPercent(drainGC))
	defer s.resync.stop()
	defer s.naming.stop()
	buf := make([]event.Event, 0, batch)
	ending := s.ending
	for {
		var err error
		begun := bootNanos()
		buf, err = s.tracer.Read(buf[:0])
		s.heap.take(buf)
		s.lost.look(s.tracer.Session, s.lose)
		for _, n := range s.tracer.Notices() {
			s.screen.say("  %s", n)
		}
		s.tellWarnings()
		if errors.Is(err, io.EOF) {
			s.resync.stop()
			s.naming.stop()
			s.readyErr = s.announce()
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ending:
			ending = nil
			s.resync.finish()
			s.naming.finish()
		default:
		}
		s.advance(begun, buf, s.tracer.Emptied())
		if s.readyErr = s.announce(); s.readyErr != nil {
			return nil
		}
		if s.resync.last && s.resync.over && s.naming.over {
			s.tracer.Stop()
		}
		s.screen.live(s)
	}
}

// tellWarnings says what went wrong since it was last called.
func (s *session) tellWarnings() {
	for _, w := range s.tracer.Warnings() {
		s.screen.warn(w)
	}
	s.tellLimit()
}

// tellLimit says once that not all stacks are kept.
func (s *session) tellLimit() {
	if !s.limited && s.tracer.StacksOverLimit() > 0 {
		s.limited = true
		s.screen.warn(fmt.Errorf("there are more than %d different stacks: further ones are counted as %s (--max-stacks)",
			s.opts.maxStacks, event.OverLimit))
	}
}

// advance goes on with what is done beside the events: those of a read that began at a time were applied.
func (s *session) advance(begun uint64, events []event.Event, emptied bool) {
	s.resync.applied(begun, events, emptied)
	s.resync.step()
	s.naming.step()
	if s.resync.round == nil {
		s.heap.checkpoint()
	}
}

// concluded is a recording that is complete but for its files.
type concluded struct {
	profiled
	in       table.Input
	held     []table.HeldInput
	snapshot *heap.Snapshot
}

// conclude ends the recording itself.
func (s *session) conclude() *concluded {
	s.end = time.Now()
	s.screen.endLive()
	s.completeBaseline()
	now := readMoment(s.target, s.driver, s.books.allocator)
	snapshot := s.heap.Snapshot()
	view := s.viewOf(snapshot)
	joined := s.naming.joined(view)
	end := s.describeEnd(s.balance(now, view))
	held := s.naming.tables(joined)
	end.Holders, end.Before = export.RecordedHolders(held), export.RecordedBefore(joined)
	s.endTrace(end, view)
	in := export.Summary(view, s.info, end)
	if n := end.StackRecordsLost; n > 0 {
		s.screen.warn(fmt.Errorf("%s: %d stacks did not fit the ring: their events have none (--ring-size)", s.who(), n))
	}
	return &concluded{profiled{view, joined, table.Comments(in)}, in, held, snapshot}
}

// finish prints the summary and writes the folder.
func (s *session) finish() error {
	c := s.conclude()
	s.screen.ended(s)
	if err := export.PrintSummary(s.out, c.in, c.held); err != nil {
		s.screen.warn(err)
	}
	written, err := s.writeSomewhere(c.profiled, s.end)
	if err != nil {
		return err
	}
	s.tellWritten(written)
	if s.viewErr != nil && s.opts.asked {
		return s.viewErr
	}
	if s.viewErr != nil {
		s.screen.warn(s.viewErr)
	}
	return s.verdict(c.snapshot)
}

// view puts the recording so far in order.
func (s *session) view() *view.View { return s.viewOf(s.heap.Snapshot()) }

func (s *session) viewOf(snapshot *heap.Snapshot) *view.View {
	return view.New(snapshot, s.tracer.Stack, &view.Options{Library: s.torchPrefixes(), Source: s.source})
}

// profiled is what goes into the profiles.
type profiled struct {
	view     *view.View
	joined   *view.Joined // nil: holders are not known
	comments []string
}

// writeSomewhere writes to the folder that was asked for, or, so that nothing captured is lost, to a temporary one.
func (s *session) writeSomewhere(p profiled, end time.Time) (string, error) {
	err := s.write(s.opts.output, p, end)
	if err == nil {
		return s.opts.output, nil
	}
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		other := filepath.Join(dir, fmt.Sprintf("gputrace.%d.%s", s.target.PID, end.Format("20060102-150405")))
		if s.write(other, p, end) == nil {
			return other, coded(exitError, fmt.Errorf("%w; the results are in %s instead", err, other))
		}
	}
	return "", err
}

func (s *session) write(path string, p profiled, end time.Time) error {
	folder, err := output.CreateFolder(path, s.opts.results())
	if err != nil {
		return err
	}
	defer folder.Discard()
	if err := s.fill(folder, p, end); err != nil {
		return err
	}
	if err := folder.Finish(); err != nil {
		return errors.Join(err, s.giveBackTrace(folder))
	}
	return nil
}

// fill writes the files of the results. The recording is moved to them last.
func (s *session) fill(folder *output.Folder, p profiled, end time.Time) error {
	detail := pprof.DetailSite
	if s.opts.fullStacks {
		detail = pprof.DetailFull
	}
	for name, in := range map[string]pprof.Input{
		"inuse.pb.gz": {Kind: pprof.InUse, View: p.view, Joined: p.joined},
		"peak.pb.gz":  {Kind: pprof.InUse, View: p.view.AtPeak()},
		"alloc.pb.gz": {Kind: pprof.Alloc, View: p.view},
	} {
		in.Rank = s.rank.label()
		in.Binary, in.Comments, in.Time, in.Duration, in.Detail = s.exe, append(s.comments(), p.comments...), end, end.Sub(s.start), detail
		err := folder.Write(name, func(w io.Writer) error { return pprof.Write(w, in) })
		if err != nil {
			return err
		}
	}
	s.viewErr = s.writeViews(folder) // may take its time: until then the recording is where it can be found
	s.adoptTrace(folder)
	return nil
}

// comments identify the run in a profile. The command line comes from the target: it is escaped.
func (s *session) comments() []string {
	f := s.tracer.Found()
	return []string{
		fmt.Sprintf("gputrace %s, %s: %s", version, s.who(), commandLine(s.cmdline, s.name)),
		fmt.Sprintf("%s, %s, %s", pythonLine(f), torchLine(f), driverLine(f, s.driver.version)),
		fmt.Sprintf("attached at %s for %.1f s", s.start.Format(time.RFC3339), time.Since(s.start).Seconds()),
	}
}

// who names the process for people.
func (s *session) who() string { return s.rank.who(s.target.PID) }

// verdict is the exit code when everything went well.
func (s *session) verdict(snapshot *heap.Snapshot) error {
	if snapshot.Events > 0 {
		return nil
	}
	switch {
	case s.tracer.End() == tracer.Exited, s.tracer.End() == tracer.Execed:
		return coded(exitTargetEnded, errors.New("the target ended before any allocation"))
	case s.signal != nil:
		return coded(exitInterrupted, errors.New("interrupted before any allocation"))
	default:
		return nil
	}
}

// source opens a Python file as the target sees it, for the text of its lines.
func (s *session) source(path string) io.Reader {
	if !filepath.IsAbs(path) {
		path = filepath.Join(cmp.Or(s.target.Cwd(), s.cwd), path)
	}
	if s.files == nil {
		return nil
	}
	f, err := s.files.Open(path)
	if err != nil {
		return nil
	}
	return f
}

// torchPrefixes tells PyTorch's own Python files where they are not in the usual places.
func (s *session) torchPrefixes() []string {
	var out []string
	for _, p := range s.tracer.Found().Probes {
		if prefix := stacks.PackagePrefix(p.File); prefix != "" {
			out = append(out, prefix)
		}
	}
	return out
}
