//go:build amd64

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// job is a recording of several processes: a session for each, all from one tracer.
type job struct {
	opts    recordOptions
	tracer  *tracer.Session
	driver  *driver // started; each process has a copy
	screen  *screen
	out     io.Writer           // for the summary
	now     map[uint32]*session // by PID, those that have not ended
	all     []*session          // in the order in which they were found
	done    map[*session]*concluded
	names   map[string]int // how often a folder was named so
	start   time.Time
	begun   uint64 // CLOCK_BOOTTIME nanoseconds of start
	signal  os.Signal
	ending  chan struct{} // closed when the recording is to end
	program *launched     // that was started; nil: none
	search  *search       // for processes; nil: none
	ready   bool          // it was said that the probes are live
	batches map[*session][]event.Event
	lost    lossWatch
	turns   chan struct{} // for the search for holders
}

// searches is how many processes are searched for holders at a time: each takes a core and a hundred megabytes.
const searches = 2

// recordJob records several processes.
func recordJob(o recordOptions, signals <-chan os.Signal) error {
	s, err := tracer.Open(&tracer.Options{
		RingBytes: o.ringBytes, FreeStacks: o.freeStacks, MaxStacks: o.maxStacks, CacheDir: o.cacheDir, Memory: o.tracerMemory(),
		Job: true, Children: o.children,
	})
	if err != nil {
		return explain(err, o)
	}
	j := &job{
		opts: o, tracer: s, driver: openDriver(), screen: newScreen(os.Stderr), out: os.Stdout, now: map[uint32]*session{},
		done: map[*session]*concluded{}, names: map[string]int{}, start: time.Now(), ending: make(chan struct{}),
		batches: map[*session][]event.Event{}, turns: make(chan struct{}, searches), begun: bootNanos(),
	}
	j.lost.looked = j.begun
	defer j.tracer.Close()
	if o.command != nil {
		err = j.startProgram()
	} else {
		err = j.addAll()
	}
	if err != nil {
		return err
	}
	dropRights(j.tracer, j.screen)
	defer func() {
		for _, s := range j.all {
			s.closeFiles()
		}
	}()
	go j.stopOn(signals)
	if err := j.drain(); err != nil {
		j.screen.warn(err) // what was captured is still written
	}
	err = j.finish()
	if j.program != nil {
		return j.program.wait(err)
	}
	return err
}

// addAll attaches to the processes that the command line names.
func (j *job) addAll() error {
	targets, err := j.findTargets()
	if err != nil {
		return err
	}
	found := j.search != nil // then one that cannot be attached to is no reason to do without the others
	var failed error
	for _, p := range targets {
		err := j.add(p)
		if err != nil && !found {
			return err
		}
		if err != nil {
			j.screen.warn(err)
			failed = err
		}
	}
	if len(targets) == 0 {
		j.tracer.Await()
		j.screen.say("  waiting for a process")
		return nil
	}
	if len(j.all) == 0 && j.tracer.Waiting() == 0 {
		return failed
	}
	if n := j.tracer.Waiting(); n > 0 {
		j.screen.say("  following %s with nothing to trace so far", processes(n))
	}
	return nil
}

// add attaches to a process; when it has nothing to trace yet and that is waited for, it is followed.
func (j *job) add(p *process.Process) error {
	t, err := j.tracer.Add(p)
	if errors.Is(err, tracer.ErrNoCUDA) && (j.opts.children || j.opts.wait) {
		err = j.tracer.Expect(p)
	}
	if err != nil {
		one := j.opts
		one.pid = p.PID
		return explain(err, one)
	}
	if t != nil {
		j.arrive(t)
	}
	return nil
}

// arrive begins the session of a process.
func (j *job) arrive(t *tracer.Tracer) {
	d := *j.driver
	s := newSession(j.opts, t.Target(), t.About(), &d, j.screen)
	s.out, s.tracer, s.start, s.turns = j.out, t, time.Now(), j.turns
	s.folder = s.rank.folder(int(t.PID()))
	if j.names[s.folder]++; j.names[s.folder] > 1 {
		s.folder = fmt.Sprintf("%s.%d", s.folder, j.names[s.folder])
	}
	d.look(s.target)
	s.begin()
	s.loseOwn(j.begun, bootNanos()) // before its first event came through
	j.now[t.PID()] = s
	j.all = append(j.all, s)
	j.screen.arrived(s)
}

// drain feeds the heaps until the trace ends.
func (j *job) drain() error {
	defer debug.SetGCPercent(debug.SetGCPercent(drainGC))
	buf := make([]event.Event, 0, batch)
	ending := j.ending
	for {
		begun := bootNanos()
		var err error
		buf, err = j.tracer.Read(buf[:0])
		for _, t := range j.tracer.Arrived() {
			j.replace(t)
		}
		j.deal(buf)
		j.lost.look(j.tracer, j.lose)
		j.talk()
		if err != nil {
			j.concludeAll()
			if errors.Is(err, io.EOF) {
				return j.announce(true)
			}
			return err
		}
		select {
		case <-ending:
			ending = nil
			for _, s := range j.now {
				s.resync.finish()
				s.naming.finish()
			}
		default:
		}
		j.advance(begun, buf)
		if ending != nil {
			j.searchAgain()
		}
		if err := j.announce(false); err != nil {
			return err
		}
		if ending == nil && j.over() {
			j.tracer.Stop()
		}
		j.screen.liveJob(j)
	}
}

// replace begins the session of a process, after that of one that had its number.
func (j *job) replace(t *tracer.Tracer) {
	if old := j.now[t.PID()]; old != nil {
		j.conclude(old)
	}
	j.arrive(t)
}

// deal gives each session its events.
func (j *job) deal(events []event.Event) {
	for i := range events {
		if s := j.now[events[i].PID]; s != nil {
			j.batches[s] = append(j.batches[s], events[i])
		}
	}
	for _, s := range j.now {
		s.heap.take(j.batches[s])
		j.batches[s] = j.batches[s][:0]
	}
}

// lose tells the sessions of events that were lost, each of its own.
func (j *job) lose(l event.Loss) {
	for _, s := range j.now {
		s.loseOwn(l.From, l.To)
	}
}

// loseOwn is told when events of any process were lost.
func (s *session) loseOwn(from, to uint64) {
	if n := s.tracer.Lost(); n > s.lost.events {
		s.lose(event.Loss{From: from, To: to, Events: n - s.lost.events})
		s.lost.events = n
	}
}

func (j *job) talk() {
	for _, n := range j.tracer.Notices() {
		j.screen.say("  %s", n)
	}
	for _, w := range j.tracer.Warnings() {
		j.screen.warn(w)
	}
	for _, s := range j.now {
		s.tellLimit()
	}
}

// advance goes on with what is done beside the events, and ends the sessions whose processes have ended.
func (j *job) advance(begun uint64, events []event.Event) {
	for _, s := range j.now {
		s.advance(begun, events, j.tracer.Emptied())
		if s.tracer.End() != tracer.Running {
			j.conclude(s)
		}
	}
}

// over reports whether every session has made its last comparison.
func (j *job) over() bool {
	for _, s := range j.now {
		if !s.resync.last || !s.resync.over || !s.naming.over {
			return false
		}
	}
	return true
}

// conclude ends the recording of one process. Its files are written at the end of the job.
func (j *job) conclude(s *session) {
	s.resync.stop()
	s.naming.stop()
	j.done[s] = s.conclude()
	if j.now[uint32(s.target.PID)] == s {
		delete(j.now, uint32(s.target.PID))
	}
	delete(j.batches, s)
	j.screen.ended(s)
}

func (j *job) concludeAll() {
	for _, s := range j.all {
		if j.done[s] == nil {
			j.conclude(s)
		}
	}
}

// announce tells scripts that the probes are live. of a program that was just started there is nothing to wait for.
func (j *job) announce(last bool) error {
	if j.ready {
		return nil
	}
	for _, s := range j.now {
		if !last && !s.resync.looked() && time.Since(s.start) < firstLook {
			return nil
		}
	}
	j.ready = true
	return writeReadyFile(j.opts.readyFile)
}

// stopOn ends the recording at the first signal or after the duration; at a second signal at once. A program that was started gets
// the signals: it is for it to end.
func (j *job) stopOn(signals <-chan os.Signal) {
	var timeout <-chan time.Time
	if j.opts.duration > 0 {
		timeout = time.After(j.opts.duration)
	}
	for passed := false; ; passed = true {
		select {
		case s := <-signals:
			if j.program != nil {
				j.program.pass(s)
				if !passed {
					continue
				}
			}
			j.signal = s
		case <-timeout:
		}
		break
	}
	close(j.ending)
	patience := lastNames
	if j.opts.noNames {
		patience = lastCheck
	}
	select {
	case s := <-signals:
		if j.program != nil {
			j.program.pass(s)
		}
	case <-time.After(patience):
	}
	j.tracer.Stop()
}

// finish prints the summary and writes the folder.
func (j *job) finish() error {
	j.screen.endLive()
	j.sayUnseen()
	end := time.Now()
	if len(j.all) == 0 {
		return coded(exitTargetEnded, errors.New("no process was seen to use CUDA. One that ends within a moment of loading it is not seen"))
	}
	j.leaveOutIdle()
	if err := j.print(end); err != nil {
		j.screen.warn(err)
	}
	path, err := j.writeSomewhere(end)
	if err != nil {
		return err
	}
	j.tellWritten(path)
	return j.verdict()
}

func (j *job) print(end time.Time) error {
	if len(j.all) > 1 {
		return table.Job(j.out, j.summary(end))
	}
	c := j.done[j.all[0]]
	if err := export.PrintSummary(j.out, c.in, c.held); err != nil {
		return err
	}
	return table.JobHits(j.out, j.summary(end))
}

// leaveOutIdle takes out of the results what used no GPU memory, such as launchers, unless nothing else is there. Of a process whose
// events were all lost that cannot be said.
func (j *job) leaveOutIdle() {
	idle := func(s *session) bool { return j.done[s].snapshot.Events == 0 && s.lost.events == 0 }
	busy := slices.DeleteFunc(slices.Clone(j.all), idle)
	if len(busy) == 0 {
		return
	}
	for _, s := range j.all {
		if idle(s) {
			j.screen.say("%s used no GPU memory", s.who())
			s.dropTrace()
		}
	}
	j.all = busy
}

// sayUnseen tells of processes that allocated before their libraries were hooked, although they began under our eyes.
func (j *job) sayUnseen() {
	if n := j.tracer.ChildrenLost(); n > 0 {
		j.screen.warn(fmt.Errorf("%d new processes were not traced: more than %d at a time", n, tracer.MaxChildren))
	}
	for _, s := range j.all {
		books := s.heap.Totals()
		for i := range books.Accounts {
			if a := &books.Accounts[i]; s.tracer.Began() && a.Baseline != event.Unknown && a.Baseline > 0 {
				j.screen.warn(fmt.Errorf("%s: %s on %s were allocated before its libraries were hooked", s.who(), table.Bytes(a.Baseline), a.Device))
			}
		}
	}
}

// summary is a line for each process and device.
func (j *job) summary(end time.Time) table.JobInput {
	hits, err := j.tracer.Hits()
	if err != nil {
		j.screen.warn(err)
	}
	in := table.JobInput{Duration: end.Sub(j.start), Hits: export.Hits(recordedHits(hits))}
	for _, c := range j.done {
		in.Received += c.snapshot.Events
	}
	for _, s := range j.ordered() {
		books := s.heap.Totals()
		in.Rows = append(in.Rows, table.JobRows(s.who()+" "+commandLine(s.cmdline, s.name), &books)...)
	}
	return in
}

// ordered is the sessions by rank, then as they were found.
func (j *job) ordered() []*session {
	out := slices.Clone(j.all)
	slices.SortStableFunc(out, func(x, y *session) int {
		switch {
		case x.rank.known() && y.rank.known():
			return x.rank.global - y.rank.global
		case x.rank.known():
			return -1
		case y.rank.known():
			return 1
		}
		return 0
	})
	return out
}

// writeSomewhere is session.writeSomewhere for all.
func (j *job) writeSomewhere(end time.Time) (string, error) {
	err := j.write(j.opts.output, end)
	if err == nil {
		return j.opts.output, nil
	}
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		other := filepath.Join(dir, "gputrace.job."+end.Format("20060102-150405"))
		if j.write(other, end) == nil {
			return other, coded(exitError, fmt.Errorf("%w; the results are in %s instead", err, other))
		}
	}
	return "", err
}

// write writes the results: combined profiles, and a folder for each process.
func (j *job) write(path string, end time.Time) error {
	folder, err := output.CreateFolder(path, j.opts.results())
	if err != nil {
		return err
	}
	defer folder.Discard()
	if err := j.writeProfiles(folder, end); err != nil {
		return err
	}
	for _, s := range j.all {
		part, err := folder.Part(s.folder)
		if err == nil {
			err = s.fill(part, j.done[s].profiled, s.end)
		}
		if err != nil {
			return errors.Join(err, j.giveBack(folder))
		}
		if s.viewErr != nil {
			j.screen.warn(fmt.Errorf("%s: %w", s.who(), s.viewErr))
		}
	}
	if err := folder.Finish(); err != nil {
		return errors.Join(err, j.giveBack(folder))
	}
	return nil
}

// giveBack saves the recordings from a folder that could not be finished.
func (j *job) giveBack(folder *output.Folder) error {
	var errs []error
	for _, s := range j.all {
		errs = append(errs, s.giveBackTrace(&output.Folder{Dir: filepath.Join(folder.Dir, s.folder)}))
	}
	return errors.Join(errs...)
}

// writeProfiles writes the profiles of all processes together.
func (j *job) writeProfiles(folder *output.Folder, end time.Time) error {
	first := j.done[j.all[0]]
	for name, kind := range map[string]pprof.Kind{"inuse.pb.gz": pprof.InUse, "peak.pb.gz": pprof.InUse, "alloc.pb.gz": pprof.Alloc} {
		var parts []pprof.Part
		for _, s := range j.ordered() {
			c := j.done[s]
			part := pprof.Part{View: c.view, Rank: s.rank.label()}
			switch name {
			case "inuse.pb.gz":
				part.Joined = c.joined
			case "peak.pb.gz":
				part.View = c.view.AtPeak()
			}
			parts = append(parts, part)
		}
		in := pprof.Input{
			View: parts[0].View, Joined: parts[0].Joined, Rank: parts[0].Rank, More: parts[1:], Kind: kind, Binary: j.all[0].exe,
			Comments: j.comments(), Time: end, Duration: end.Sub(j.start), Detail: pprof.DetailSite,
		}
		if name == "peak.pb.gz" && len(parts) > 1 {
			in.Comments = append(in.Comments, "each process at its own peak: their sum was never in use at one moment")
		}
		if j.opts.fullStacks {
			in.Detail = pprof.DetailFull
		}
		if len(parts) == 1 {
			in.Comments = append(in.Comments, first.comments...)
		}
		if err := folder.Write(name, func(w io.Writer) error { return pprof.Write(w, in) }); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) comments() []string {
	out := []string{fmt.Sprintf("gputrace %s, %s", version, processes(len(j.all)))}
	for _, s := range j.ordered() {
		out = append(out, fmt.Sprintf("%s: %s", s.who(), commandLine(s.cmdline, s.name)))
	}
	return out
}

// toldFolders is how many folders of processes are named.
const toldFolders = 16

func (j *job) tellWritten(folder string) {
	row := func(files, open string) { fmt.Fprintf(j.out, "  %-41s %s\n", files, open) }
	fmt.Fprintf(j.out, "\nwrote %s/\n", folder)
	row(strings.Join(profileNames, "  "), "go tool pprof -top -tagroot rank,pid "+filepath.Join(folder, profileNames[0]))
	for i, s := range j.ordered() {
		if i == toldFolders {
			row("and of "+processes(len(j.all)-i)+" more", "")
			break
		}
		row(s.folder+"/", "gputrace report "+filepath.Join(folder, s.folder))
	}
}

// verdict is the exit code when everything went well.
func (j *job) verdict() error {
	for _, s := range j.all {
		if j.done[s].snapshot.Events > 0 {
			return nil
		}
	}
	switch {
	case j.signal != nil:
		return coded(exitInterrupted, errors.New("interrupted before any allocation"))
	case j.tracer.Ended():
		return coded(exitTargetEnded, errors.New("all processes ended before any allocation"))
	default:
		return nil
	}
}

// books are the totals of all processes that run, as if they were one's.
func (j *job) books() heap.Totals {
	var out heap.Totals
	for _, s := range j.now {
		b := s.heap.Totals()
		out.Accounts = append(out.Accounts, b.Accounts...)
		out.Drivers = append(out.Drivers, b.Drivers...)
	}
	return out
}

// findTargets lists the processes that a command line means, and says which they are when it does not name them.
func (j *job) findTargets() ([]*process.Process, error) {
	var out []*process.Process
	if j.opts.pid != 0 {
		for _, pid := range append([]int{j.opts.pid}, j.opts.others...) {
			p, err := process.Open(pid)
			if err != nil {
				one := j.opts
				one.pid = pid
				return nil, explain(err, one)
			}
			out = append(out, p)
		}
	}
	var err error
	if j.search, err = newSearch(&j.opts); err != nil {
		return nil, err
	}
	if j.search != nil {
		found, err := j.search.look()
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			if !slices.ContainsFunc(out, func(q *process.Process) bool { return q.PID == p.PID }) {
				j.screen.say("  pid %d %s", p.PID, commandLine(p.Cmdline(32), p.Name()))
				out = append(out, p)
			}
		}
	}
	if len(out) == 0 && !j.opts.wait {
		return nil, coded(exitNothing, errors.New("no process that uses CUDA was found: start it, wait for it (--wait), or see gputrace run --help"))
	}
	return out, nil
}
