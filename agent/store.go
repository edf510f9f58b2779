// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/dataset"
	"github.com/gputrace/gputrace/recorder"
)

// store writes rows of processes to the dataset. Rows wait in memory until files of a useful size can be made of them.
type store struct {
	config  *DatasetConfig
	top     int // lines of a moment
	version string
	node    string
	log     *slog.Logger
	ended   chan endedProcess
	full    chan struct{} // receives when half of the rows that may wait do

	mu      sync.Mutex
	waiting map[dataset.Part]*waiting
	rows    int

	// In the goroutine of run:
	dataset *dataset.Dataset // nil: not opened yet
	files   []storedFile     // the agent's own, the oldest first

	counts storeCounts
}

// storeCounts are the store's metrics.
type storeCounts struct {
	written, dropped, failures, removed, unseen atomic.Uint64
	bytes, files                                atomic.Int64
}

// waiting are the rows of a part that are not in a file yet.
type waiting struct {
	moments []dataset.MomentRow
	lines   []dataset.LineRow
}

func (w *waiting) len() int { return len(w.moments) + len(w.lines) }

// storedFile is a file of the dataset.
type storedFile struct {
	path  string
	bytes int64
	time  time.Time
}

// endedProcess is a process that has ended, at its peak.
type endedProcess struct {
	process *dataset.Process
	view    *view.View
	time    time.Time
}

const (
	// maxEnded is how many processes that have ended may wait for their rows to be made.
	maxEnded = 16
	// block is the smallest size that a file is taken to have.
	block = 4096
	// nodeName is how a file's name begins, before the name of the node.
	nodeName = "agent-"
)

// newStore returns the store of an agent; nil: the configuration has none.
func newStore(c *Config, version, node string, log *slog.Logger) *store {
	if c.Dataset.Dir == "" {
		return nil
	}
	return &store{
		config: &c.Dataset, top: max(c.TopLines, 1), version: version, node: node, log: log,
		ended: make(chan endedProcess, maxEnded), full: make(chan struct{}, 1), waiting: map[dataset.Part]*waiting{},
	}
}

// processOf returns what the dataset has of a target.
func (s *store) processOf(t *target) *dataset.Process {
	p := t.process
	out := &dataset.Process{Labels: p.Labels(), Rank: -1, PID: p.PID(), Program: p.Script(), Started: t.began, Version: s.version}
	if r := p.Rank(); r != nil {
		out.Rank, out.World = r.Rank, r.World
	}
	return out
}

// keep adds a moment of a target once an interval, and its peak if that has risen. It is called in the goroutine of summarize.
func (s *store) keep(t *target, m *recorder.Moment, sum *summary, most int) {
	if s == nil || time.Now().Before(t.keepNext) {
		return
	}
	t.keepNext = time.Now().Add(time.Duration(s.config.Interval))
	lost := int64(m.Lost)
	row := dataset.Moment{
		Process: s.processOf(t), Kind: dataset.Now, Time: m.Time, View: m.View(), Driver: t.uses, Lost: &lost, Leaks: m.Leaks,
		Verdict: sum.Verdict, Text: sum.Sentence, Top: s.top, Names: func(line string) bool { return t.names(lineName(line), most) },
	}
	s.add(&row)
	if peak := m.View().AtPeak(); t.rises(peak.Total()) {
		row.Kind, row.View, row.Driver = dataset.Peak, peak, nil
		s.add(&row)
	}
}

// end adds the peak of a process that has ended, if it was not seen yet. It is called in the goroutine of the recorder, so that the rows
// are made elsewhere.
func (s *store) end(t *target, p *recorder.Process) {
	if s == nil || t == nil {
		return
	}
	peak := p.View().WithoutSource().AtPeak()
	if !t.rises(peak.Total()) {
		return
	}
	select {
	case s.ended <- endedProcess{s.processOf(t), peak, time.Now()}:
	default:
		s.counts.unseen.Add(1)
	}
}

// add adds the rows of a moment. If too many wait, these are dropped.
func (s *store) add(m *dataset.Moment) {
	moments, lines := m.Rows()
	part := m.Process.Part(m.Time)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(moments) + len(lines)
	if s.rows+n > s.config.MaxRows {
		s.counts.dropped.Add(uint64(n))
		return
	}
	w := s.waiting[part]
	if w == nil {
		w = &waiting{}
		s.waiting[part] = w
	}
	w.moments, w.lines = append(w.moments, moments...), append(w.lines, lines...)
	if s.rows += n; s.rows > s.config.MaxRows/2 {
		select {
		case s.full <- struct{}{}:
		default:
		}
	}
}

// run writes what waits once in Config.Flush, and at the end. After a failure it tries again, after longer and longer pauses.
func (s *store) run(ctx context.Context) {
	const shortest = time.Second
	flush := time.Duration(s.config.Flush)
	wait, pause := flush, shortest
	timer := time.NewTimer(wait)
	defer timer.Stop()
	failed := false
	for {
		full := s.full
		if failed {
			full = nil
		}
		select {
		case <-ctx.Done():
			s.drain()
			if err := s.flush(); err != nil {
				s.log.Error("the last rows of the dataset are lost", "error", err)
			}
			return
		case e := <-s.ended:
			s.addEnded(e)
			continue
		case <-timer.C:
		case <-full:
		}
		err := s.flush()
		if failed = err != nil; failed {
			s.counts.failures.Add(1)
			s.log.Warn("the dataset cannot be written", "error", err, "again after", pause)
			wait, pause = pause, min(2*pause, max(flush, shortest))
		} else {
			wait, pause = flush, shortest
		}
		timer.Reset(wait)
	}
}

func (s *store) addEnded(e endedProcess) {
	s.add(&dataset.Moment{Process: e.process, Kind: dataset.Peak, Time: e.time, View: e.view, Top: s.top})
}

// drain adds the processes that have ended.
func (s *store) drain() {
	for {
		select {
		case e := <-s.ended:
			s.addEnded(e)
		default:
			return
		}
	}
}

// flush writes all rows that wait. What could not be written waits on.
func (s *store) flush() error {
	if err := s.open(); err != nil {
		return err
	}
	s.mu.Lock()
	all := s.waiting
	s.waiting = map[dataset.Part]*waiting{}
	s.mu.Unlock()
	name := nodeName + safe(s.node) + "-" + time.Now().UTC().Format("20060102T150405.000000Z")
	var errs []error
	for part, w := range all {
		files, err := s.dataset.Write(part, name, s.version, w.moments, w.lines)
		if err != nil {
			errs = append(errs, err)
			s.giveBack(part, w)
			continue
		}
		s.mu.Lock()
		s.rows -= w.len()
		s.mu.Unlock()
		s.counts.written.Add(uint64(w.len()))
		for _, f := range files {
			s.files = append(s.files, storedFile{f.Path, max(f.Bytes, block), time.Now()})
		}
	}
	s.sweep(time.Now())
	return errors.Join(errs...)
}

// giveBack lets rows wait again.
func (s *store) giveBack(part dataset.Part, w *waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if newer := s.waiting[part]; newer != nil {
		w.moments, w.lines = append(w.moments, newer.moments...), append(w.lines, newer.lines...)
	}
	s.waiting[part] = w
}

// abandoned is the age from which an unfinished file is of an agent that was killed while it wrote it.
const abandoned = time.Hour

// open opens the dataset, and finds the files of this node in it that an agent wrote before.
func (s *store) open() error {
	if s.dataset != nil {
		return nil
	}
	d, err := dataset.Open(s.config.Dir)
	if err != nil {
		return err
	}
	own := regexp.MustCompile("^" + regexp.QuoteMeta(nodeName+safe(s.node)) + `-\d{8}T\d{6}\.\d{6}Z\.parquet$`)
	s.files = nil
	for _, table := range []string{dataset.Moments, dataset.Lines} {
		err = filepath.WalkDir(filepath.Join(s.config.Dir, table), func(path string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case !e.Type().IsRegular():
				return nil
			}
			name, unfinished := dataset.Unfinished(e.Name())
			if !own.MatchString(cmp.Or(name, e.Name())) {
				return nil
			}
			info, err := e.Info()
			switch {
			case err != nil: // it has just been removed
			case !unfinished:
				s.files = append(s.files, storedFile{path, max(info.Size(), block), info.ModTime()})
			case time.Since(info.ModTime()) > abandoned:
				return os.Remove(path)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	slices.SortFunc(s.files, func(x, y storedFile) int { return x.time.Compare(y.time) })
	s.dataset = d
	return nil
}

// sweep removes the oldest files of this node beyond the configured age and size.
func (s *store) sweep(now time.Time) {
	sum := int64(0)
	for i := range s.files {
		sum += s.files[i].bytes
	}
	for len(s.files) > 0 {
		f := s.files[0]
		if now.Sub(f.time) <= time.Duration(s.config.MaxAge) && sum <= int64(s.config.MaxSize) {
			break
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("an old file of the dataset cannot be removed", "error", err)
			break
		}
		s.removeFolders(filepath.Dir(f.path))
		s.files, sum = s.files[1:], sum-f.bytes
		s.counts.removed.Add(1)
	}
	s.counts.bytes.Store(sum)
	s.counts.files.Store(int64(len(s.files)))
}

// removeFolders removes a folder of a part, and those above it, if they are empty.
func (s *store) removeFolders(dir string) {
	for range 3 {
		if os.Remove(dir) != nil {
			return
		}
		dir = filepath.Dir(dir)
	}
}

// safe returns a name of a machine as a part of a file's name.
func safe(node string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || labelRune(r) != '_' {
			return r
		}
		return '_'
	}, node)
}
