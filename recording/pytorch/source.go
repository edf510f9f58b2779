// SPDX-License-Identifier: Apache-2.0

// Package pytorch reads the memory snapshots that PyTorch writes (torch.cuda.memory._dump_snapshot, PyTorch 2.0 and
// later), and converts them to the events that a tracer would have seen. A snapshot is a pickle; nothing in it is ever
// executed. See docs/use/snapshot.md.
package pytorch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/recording"
)

// ErrFormat means that a file is not a PyTorch memory snapshot, or a damaged one.
var ErrFormat = errors.New("not a memory snapshot of PyTorch")

// Calls of the device layer, as PyTorch names its actions.
const (
	callSegment = "segment_alloc"
	callMap     = "segment_map"
)

// maxParts is the maximum number of parts in which the memory of expandable segments may be mapped.
const maxParts = 1 << 22

// Source is a snapshot as events. The process has PID 0 and no threads, because a snapshot has neither. Memory from
// before the history comes first: as allocations if the snapshot has their stacks, otherwise from the allocator state.
// The times are UTC, nanoseconds since 1970. Source implements event.Recorded. It is not safe for concurrent use.
type Source struct {
	contents *contents
	devices  []*history
	order    []number // all entries, by time
	parts    [][]uint64
	from, to uint64 // times before and after all entries
	notes    []string

	stage       stage
	next        int
	handles     uint64
	totals      []totals
	queue       []event.Event
	annotations []event.Annotation
}

// number is an entry of a device.
type number struct {
	device uint8
	entry  uint32
}

// totals are the allocator's, bytes.
type totals struct{ allocated, reserved uint64 }

type stage uint8

const (
	stageState stage = iota // memory from before without a stack
	stageBefore
	stageChecked // all memory from before is known
	stageEntries
	stageEnd
	stageOver
)

// IsSnapshot reports whether a file with this beginning can be a snapshot: a pickle of protocol 2 to 5.
func IsSnapshot(head []byte) bool {
	return len(head) >= 2 && head[0] == opProto && head[1] >= 2 && head[1] <= 5
}

// Open reads a file. The error wraps ErrFormat when the file is not a snapshot.
func Open(path string) (*Source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	s, err := New(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("open snapshot %s: %w", path, err)
	}
	return s, nil
}

// New reads a snapshot. The error wraps ErrFormat when the data is not one.
func New(r io.Reader) (*Source, error) {
	p, err := unpickle(r)
	if err != nil {
		return nil, err
	}
	c, err := decode(p)
	if err != nil {
		return nil, err
	}
	s := &Source{contents: c}
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return s, s.Rewind()
}

// prepare creates the histories and the order of all entries.
func (s *Source) prepare() error {
	c := s.contents
	for i := range c.segments {
		for len(c.entries) <= int(c.segments[i].device) {
			c.entries = append(c.entries, nil)
		}
	}
	sorts.Func(c.segments, func(x, y segment) int {
		return cmp.Or(cmp.Compare(x.device, y.device), cmp.Compare(x.addr, y.addr))
	})
	for i := range c.segments[min(1, len(c.segments)):] {
		if x, y := &c.segments[i], &c.segments[i+1]; x.device == y.device && x.addr+x.size > y.addr {
			return shape("two segments at %#x", y.addr)
		}
	}
	settings := c.settings
	settings.expandable = settings.expandable || !settings.known && c.mapped()
	for device, entries := range c.entries {
		h := newHistory(entries, c.of(device), &settings)
		s.devices = append(s.devices, h)
		parts, err := h.parts()
		if err != nil {
			return err
		}
		s.parts = append(s.parts, parts)
		for i := range entries {
			s.order = append(s.order, number{uint8(device), uint32(i)})
		}
	}
	s.arrange()
	s.note()
	return nil
}

// of returns the segments of a device.
func (c *contents) of(device int) []segment {
	from, _ := slices.BinarySearchFunc(c.segments, device, func(x segment, d int) int { return cmp.Compare(int(x.device), d) })
	to := from
	for to < len(c.segments) && int(c.segments[to].device) == device {
		to++
	}
	return c.segments[from:to]
}

// mapped reports whether there are expandable segments.
func (c *contents) mapped() bool {
	for _, entries := range c.entries {
		if slices.ContainsFunc(entries, func(e entry) bool { return e.action == actionSegmentMap }) {
			return true
		}
	}
	return slices.ContainsFunc(c.segments, func(s segment) bool { return s.expandable })
}

// untimed is the beginning of a snapshot without times: a second after the clock's zero, with a microsecond per entry.
const untimed = uint64(time.Second)

// arrange sorts the entries, and sets their times so that they do not decrease.
func (s *Source) arrange() {
	c := s.contents
	for _, entries := range c.entries {
		last := uint64(0)
		for i := range entries {
			if !c.timed {
				entries[i].time = untimed + uint64(i)*1000
			}
			last = max(last+1, entries[i].time) // several entries can share a microsecond
			entries[i].time = last
		}
	}
	slices.SortStableFunc(s.order, func(x, y number) int { return cmp.Compare(s.entry(x).time, s.entry(y).time) })
	s.from, s.to = untimed, untimed
	if n := len(s.order); n > 0 {
		s.from, s.to = max(s.entry(s.order[0]).time, 10), max(s.entry(s.order[n-1]).time, 10)
	}
}

func (s *Source) entry(n number) *entry { return &s.contents.entries[n.device][n.entry] }

// parts returns, by address, the addresses at which mapped memory is divided, so that memory which is mapped at once
// and unmapped in pieces consists of the same pieces.
func (h *history) parts() ([]uint64, error) {
	var out []uint64
	for _, m := range h.mapped {
		out = append(out, m.start, m.end)
	}
	for i := range h.entries {
		if e := &h.entries[i]; e.action == actionSegmentMap || e.action == actionSegmentUnmap {
			out = append(out, e.addr, e.addr+e.size)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	n := 0
	for i := range h.entries {
		if e := &h.entries[i]; e.action == actionSegmentMap {
			from, to := within(out, e.addr, e.addr+e.size)
			if n += to - from; n > maxParts {
				return nil, shape("segments are mapped in more than %d parts", maxParts)
			}
		}
	}
	return out, nil
}

// within returns the indexes from:to of the cuts in [lo, hi).
func within(cuts []uint64, lo, hi uint64) (from, to int) {
	from, _ = slices.BinarySearch(cuts, lo)
	to, _ = slices.BinarySearch(cuts, hi)
	return from, to
}

// note collects remarks on what is less exact than in a recording.
func (s *Source) note() {
	say := func(format string, args ...any) { s.notes = append(s.notes, fmt.Sprintf(format, args...)) }
	if len(s.order) == 0 {
		say("the snapshot has no history: it shows its own moment only")
	} else if !s.contents.timed {
		say("the snapshot has no times (PyTorch before 2.2): they are made up, one microsecond for each entry")
	}
	contradictions, uncertain, odd := 0, 0, 0
	for _, h := range s.devices {
		contradictions, uncertain, odd = contradictions+h.contradictions, uncertain+h.uncertain, odd+h.odd
	}
	if odd > 0 {
		say("the allocator had settings that the snapshot does not tell: what it has at the end is exact, sizes of blocks that were given " +
			"back are not")
	}
	if uncertain > 0 {
		more := "1 MiB"
		if s.contents.settings.maxSplit > 0 {
			more = "20 MiB" // kLargeBuffer, for blocks that are not split
		}
		say("%d blocks from before the history were given back in it: each may have been up to %s larger than it is shown", uncertain, more)
	}
	if contradictions > 0 {
		say("%d entries contradict others: the history has gaps", contradictions)
	}
	for _, name := range slices.Sorted(mapKeys(s.contents.unknown)) {
		say("%d entries of an unknown action %q are left out", s.contents.unknown[name], name)
	}
}

// Notes lists what the events lack compared with a tracer's; empty: nothing.
func (s *Source) Notes() []string { return s.notes }

// Info returns the part of a recording's Info that a snapshot has: only the clock.
func (s *Source) Info() *recording.Info {
	info := &recording.Info{Name: s.contents.allocator.String() + " memory snapshot"}
	if s.contents.timed {
		info.Started, info.StartedBoot = time.Unix(0, int64(s.from)).UTC(), s.from
	}
	return info
}

// Stack implements event.Source.
func (s *Source) Stack(id event.StackID) *event.Stack { return s.contents.stacks.stack(id) }

// Annotations implements event.Replayable.
func (s *Source) Annotations() []event.Annotation {
	m := s.annotations
	s.annotations = nil
	return m
}

// Rewind makes the first event the next to be read. The error is nil.
func (s *Source) Rewind() error {
	s.stage, s.next, s.handles, s.queue, s.annotations = stageState, 0, 0, nil, nil
	s.totals = make([]totals, len(s.devices))
	return nil
}

// Read implements event.Source.
func (s *Source) Read(buf []event.Event) ([]event.Event, error) {
	for len(s.annotations) == 0 && len(buf) < cap(buf) {
		if len(s.queue) == 0 && s.stage == stageOver {
			if len(buf) == 0 {
				return buf, io.EOF
			}
			break
		}
		if len(s.queue) == 0 {
			s.advance()
			continue
		}
		n := min(len(s.queue), cap(buf)-len(buf))
		buf = append(buf, s.queue[:n]...)
		s.queue = s.queue[n:]
	}
	return buf, nil
}
