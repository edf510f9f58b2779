// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/recording"
)

const (
	// judgeEvery is the shortest time between two leak reports, by the clock of the events; they take at most
	// 1/judgeShare of the time.
	judgeEvery = uint64(time.Second)
	judgeShare = 50
	// readAgain is the shortest time between two readings of the holders of the same growth; it must have grown by the
	// factor grownBy.
	readAgain = time.Minute
	grownBy   = 2
	// unheldAgain is the shortest time until holders are read again for growth without a known holder; it doubles with each try.
	unheldAgain = 3 * time.Second
	// withdrawAfter is the number of reports in a row from which a finding must be missing before it is withdrawn.
	withdrawAfter = 3
	// lookTimeout is how long the announcement of a finding waits for a reading of its holders.
	lookTimeout = 10 * time.Second
	// maxSaid is the number of findings that are announced one by one; the rest is left to the report.
	maxSaid = 3
)

// growth watches whether the memory of a process grows from step to step. It runs in the goroutine that owns the heap.
type growth struct {
	process *Process
	watch   *leaks.Watch
	chosen  string        // Options.StepOn
	report  *leaks.Report // the current one; nil: none yet
	judged  int           // number of steps when it was made
	// reported is when it was made.
	reported time.Time
	next     uint64 // time of the next report, on the clock of the events

	said    map[string]*said      // announced findings, by name
	limited map[event.Device]bool // devices for which it was announced when growth will fill them
	answers chan holdersAnswer
	read    time.Time                      // when holders were last requested
	asked   []leaks.Finding                // the findings for which they were requested, as they were then
	rooms   *rooms                         // free memory of the devices at the last reading; nil: none yet
	reading chan *rooms                    // nil: no reading in progress
	freed   time.Time                      // time of the last reading of the devices
	held    [][]leaks.Holder               // holder scans, the latest last
	facts   map[string]figures.HolderFacts // facts that scans found, by name of the holder; nil: none yet
	lengths advice.Lengths
	// optimizer: a scan found optimizer state.
	optimizer bool
	blind     bool           // the last reading of holders failed
	tries     int            // number of scans since which the same findings have no holder
	all       []leaks.Holder // holders of the lines in the last scan made for another reason
}

// rooms is the free memory and the size of each device, bytes.
type rooms struct{ free, size map[event.Device]uint64 }

func roomsOf(driver []figures.DriverUse) *rooms {
	return &rooms{trailer.FreeOf(driver), trailer.SizeOf(driver)}
}

// said is a finding that was announced.
type said struct {
	finding leaks.Finding // of the whole line
	holders []string      // announced, as varpath.Root
	missing int           // number of reports in a row without it
	quiet   bool          // it was not announced, because others were
}

// isNewHolder reports whether a finding of the line has the first holder that is known, or another one of several.
func (s *said) isNewHolder(f *leaks.Finding) bool {
	return f.Holder != "" && (len(s.holders) == 0 || f.Parted && !slices.Contains(s.holders, varpath.Root(f.Holder)))
}

// newGrowth begins to watch a process; it returns nil with Options.NoSteps.
func newGrowth(p *Process) *growth {
	if p.options.NoSteps {
		return nil
	}
	g := &growth{process: p, chosen: p.options.StepOn, said: map[string]*said{}, limited: map[event.Device]bool{}}
	g.watch = leaks.NewWatch(&steps.Rules{Library: p.torchFolders(), On: g.chosen}, p.joiner.Stack)
	p.heap.passing.Next = g.watch
	if p.scans != nil {
		p.scans.take = g.see
	}
	p.heap.before = func(e *event.Event) { g.watch.See(e, p.heap.Blocks) }
	return g
}

// taken records the steps among the events that were applied.
func (g *growth) taken() {
	numbering, begins := g.watch.Begins()
	if begins == nil {
		return
	}
	source, on := g.watch.Source()
	m := &event.Steps{Numbering: numbering, Source: string(source), On: on, Chosen: g.chosen, First: begins[0].Step}
	for _, b := range begins {
		m.Begins = append(m.Begins, b.Time)
	}
	g.process.heap.mark(event.Annotation{Kind: event.AnnotationSteps, PID: uint32(g.process.PID()), Steps: m})
}

// step makes a report when it is due.
func (g *growth) step() {
	g.receive()
	now, at := time.Now(), g.process.heap.Totals().Time
	if at < g.next || g.watch.Judged() == g.judged {
		return
	}
	g.judge()
	g.next = at + max(judgeEvery, uint64(judgeShare*time.Since(now)))
	g.readFree(now)
	g.announce()
	g.ask(now)
}

// judge makes the current report.
func (g *growth) judge() {
	library := g.process.torchFolders()
	g.watch.SetLibrary(library)
	g.judged = g.watch.Judged()
	garbage := g.process.scans.garbage.Figures().Mostly()
	o := &leaks.Options{Library: library, Earlier: g.earlier(), Facts: g.facts, Garbage: garbage, Optimizer: g.optimizer}
	if g.rooms != nil {
		o.Free, o.Size = g.rooms.free, g.rooms.size
	}
	g.report, g.reported = g.watch.Report(o), time.Now()
}

// sure returns the findings that are certain enough to announce. Growth seen over a few periods only can be a queue that fills.
func (g *growth) sure() []leaks.Finding {
	if !g.report.Steps.Settled() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(g.report.Findings), func(f leaks.Finding) bool { return f.Confidence == leaks.Low })
}

// announce announces new findings and newly known holders, and withdraws findings that are no longer true.
func (g *growth) announce() {
	for _, s := range g.said {
		s.missing++
	}
	all := g.sure()
	for i := range all { // those that are there, before others are taken for them by another name
		if s := g.said[all[i].Name()]; s != nil {
			s.missing = 0
		}
	}
	for _, f := range all {
		s := g.said[f.Name()]
		if s == nil && !g.looked(&f) {
			continue
		}
		line := leaks.OfLine(all, &f)
		if s == nil {
			s = g.add(&line)
		}
		s.finding, s.missing = line, 0
		if s.quiet {
			continue
		}
		if s.isNewHolder(&f) {
			g.notify(HeldBy, &f)
			s.holders = append(s.holders, varpath.Root(f.Holder))
		}
		if !math.IsNaN(f.Seconds) && !g.limited[f.Device] {
			g.notify(FullIn, &f)
			g.limited[f.Device] = true
		}
	}
	for name, s := range g.said {
		if s.missing >= withdrawAfter && g.judged >= leaks.MinSteps && !g.stillThere(name) {
			delete(g.said, name)
			if s.quiet {
				continue
			}
			g.notify(Withdrawn, &s.finding)
		}
	}
}

// looked reports whether it was read what holds the blocks of a finding, or that takes too long. A container that fills up to its
// bound is no leak, which only a reading can tell: a finding is not announced before it.
func (g *growth) looked(f *leaks.Finding) bool {
	if g.process.options.NoHolders || g.blind {
		return true
	}
	return !g.isNew(*f) && (g.answers == nil || time.Since(g.read) > lookTimeout)
}

// add adds a finding, and announces it unless it is one that was announced by another name or there are too many.
func (g *growth) add(f *leaks.Finding) *said {
	for name, s := range g.said {
		if s.missing > 0 && s.finding.Bytes == f.Bytes && s.finding.Device == f.Device && s.finding.Layer == f.Layer {
			delete(g.said, name)
			g.said[f.Name()] = s
			return s
		}
	}
	s := &said{quiet: len(g.said) >= maxSaid}
	switch {
	case !s.quiet:
		g.notify(Growing, f)
	case len(g.said) == maxSaid:
		g.notify(Further, f)
	}
	g.said[f.Name()] = s
	return s
}

// stillThere reports whether the report has a finding with that name, certain or not.
func (g *growth) stillThere(name string) bool {
	return slices.ContainsFunc(g.report.Findings, func(f leaks.Finding) bool { return f.Name() == name })
}

func (g *growth) notify(news News, f *leaks.Finding) {
	g.process.observer.Event(&Finding{g.process, news, *f, g.report.Steps.Last})
}

// ask requests the holders of growth: at once when it is new, again when there is much more of it, and sooner if a
// finding has no holder.
func (g *growth) ask(now time.Time) {
	if g.answers != nil || g.process.options.NoHolders {
		return
	}
	all := g.sure()
	switch since := now.Sub(g.read); {
	case g.read.IsZero() && len(all) > 0:
	case slices.ContainsFunc(all, g.isNew) && since >= unheldAgain:
		g.tries = 0
	case slices.ContainsFunc(all, func(f leaks.Finding) bool { return f.Holder == "" }) &&
		since >= min(readAgain, unheldAgain<<min(g.tries, 8)):
		g.tries++
	case slices.ContainsFunc(all, g.grewSince) && since >= readAgain:
	default:
		return
	}
	g.answers, g.read, g.asked = make(chan holdersAnswer, 1), now, all
	g.process.scans.request(g.answers)
}

// isNew reports whether a finding did not exist when holders were last requested.
func (g *growth) isNew(f leaks.Finding) bool {
	return !slices.ContainsFunc(g.asked, func(a leaks.Finding) bool { return a.Name() == f.Name() })
}

const (
	// leastSeen is the number of blocks of a line that a holder must have for a scan made for another reason to count;
	// the holder of a step's temporary blocks has fewer. maxSeen is the number of rows that are kept.
	leastSeen = 3
	maxSeen   = 50
)

// see stores and records what a scan found about the lines, for growth that is detected later.
func (g *growth) see(j *view.Joined) {
	if g.answers != nil { // hold receives it
		return
	}
	g.learn(j)
	var rows []event.HeldRow
	rows = append(rows, leaks.Passing(j)...)
	for _, h := range leaks.Holders(j) {
		if h.Named() && h.Blocks >= leastSeen && len(rows) < maxSeen {
			rows = append(rows, event.HeldRow{Site: h.Site, Holder: h.Name, Bytes: h.Bytes, Blocks: h.Blocks})
		}
	}
	if len(rows) == 0 {
		return
	}
	g.all = leaks.EarlierRows(rows)
	h := &event.Held{Time: g.process.heap.Totals().Time, Rows: rows}
	g.process.heap.mark(event.Annotation{Kind: event.AnnotationHeld, PID: uint32(g.process.PID()), Held: h})
}

// earlier returns the scans so far, the last one of the growth itself at the end.
func (g *growth) earlier() [][]leaks.Holder {
	if g.all == nil {
		return g.held
	}
	return append([][]leaks.Holder{g.all}, g.held...)
}

// readFree requests the free memory of the devices: once, because the report weighs growth by it, and then occasionally
// while something grows.
func (g *growth) readFree(now time.Time) {
	again := now.Sub(g.freed) >= readAgain && len(g.report.Findings) > 0
	if g.reading != nil || !g.freed.IsZero() && !again {
		return
	}
	g.reading, g.freed = make(chan *rooms, 1), now
	p, answer := g.process, g.reading
	go func() {
		ctx, cancel := context.WithTimeout(p.ctx, totalsTimeout)
		defer cancel()
		answer <- roomsOf(p.readMemory(ctx).Driver)
	}()
}

// grewSince reports whether a finding has grown much since holders were last read.
func (g *growth) grewSince(f leaks.Finding) bool {
	for i := range g.asked {
		if g.asked[i].Name() == f.Name() {
			return f.LiveBytes > grownBy*g.asked[i].LiveBytes
		}
	}
	return true
}

// receive stores the holders and the free memory of the devices when they arrive.
func (g *growth) receive() {
	select {
	case g.rooms = <-g.reading:
		g.reading = nil
		g.judge()
		g.announce()
	default:
	}
	select {
	case a := <-g.answers:
		g.answers = nil
		if a.err != nil {
			g.asked, g.blind = nil, true // try again later
			return
		}
		g.blind = false
		g.hold(a.joined)
	default:
	}
}

// keptReadings is the number of scans that are kept: the one in the verdict, and the latest.
const keptReadings = 2

// hold stores and records the holders that were requested.
func (g *growth) hold(j *view.Joined) {
	h := &event.Held{Time: g.process.heap.Totals().Time}
	g.learn(j)
	for i := range g.asked {
		h.Rows = append(h.Rows, leaks.HeldBy(&g.asked[i], g.process.heap.Blocks(), leaks.HolderIn(j))...)
	}
	h.Rows = append(h.Rows, leaks.Passing(j)...)
	g.keep(h)
	g.judge()
	g.announce()
}

// keep records a scan and stores it for the next verdict.
func (g *growth) keep(h *event.Held) {
	if len(h.Rows) == 0 {
		return
	}
	if len(g.held) == keptReadings {
		g.held = g.held[1:]
	}
	g.held = append(g.held, leaks.EarlierRows(h.Rows))
	g.process.heap.mark(event.Annotation{Kind: event.AnnotationHeld, PID: uint32(g.process.PID()), Held: h})
}

// learn adds facts about holders from a scan.
func (g *growth) learn(j *view.Joined) {
	g.optimizer = g.optimizer || j != nil && j.Holds(phases.OptimizerState)
	for name, f := range leaks.Facts(j) {
		if g.facts == nil {
			g.facts = map[string]figures.HolderFacts{}
		}
		if latest := g.process.scans.latest; latest != nil {
			g.lengths.See(name, &f, latest.Until)
		}
		g.facts[name] = f
	}
}

// conclude makes the last report, with the knowledge at the end.
func (g *growth) conclude(joined *view.Joined, end *recording.End) {
	g.keep(&event.Held{Time: g.process.heap.Totals().Time, Rows: leaks.Passing(joined)})
	o := &leaks.Options{Library: g.process.torchFolders(), Holders: leaks.Holders(joined), Earlier: g.earlier()}
	g.learn(joined)
	o.Facts, o.Garbage = g.facts, g.process.scans.garbage.Figures().Mostly()
	driver := trailer.Driver(end)
	o.Free, o.Size, o.Ended = trailer.FreeOf(driver), trailer.SizeOf(driver), trailer.Ended(end)
	o.Optimizer = g.optimizer
	o.HolderOf, o.Live = leaks.HolderIn(joined), g.process.heap.Blocks()
	g.watch.SetLibrary(o.Library)
	g.watch.Complete(g.process.heap.Blocks)
	g.taken()
	g.report, g.reported = g.watch.Report(o), time.Now()
}
