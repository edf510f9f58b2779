// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

const mib = 1 << 20

// dict has keys and values in turn, list values: what a snapshot consists of.
type (
	dict []any
	list []any
)

// pickled writes a value as CPython's protocol 2 does, without its memo.
func pickled(v any) []byte {
	var b bytes.Buffer
	b.WriteString("\x80\x02")
	writePickle(&b, v)
	b.WriteByte('.')
	return b.Bytes()
}

func writePickle(b *bytes.Buffer, v any) {
	many := func(open, end string, all []any) {
		b.WriteString(open + "(")
		for _, x := range all {
			writePickle(b, x)
		}
		b.WriteString(end)
	}
	switch v := v.(type) {
	case nil:
		b.WriteByte('N')
	case bool:
		b.WriteByte(map[bool]byte{false: 0x89, true: 0x88}[v])
	case int:
		writePickle(b, uint64(v))
	case uint64:
		b.WriteString("\x8a\x08")
		b.Write(binary.LittleEndian.AppendUint64(nil, v))
	case string:
		b.WriteByte('X')
		b.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(v))))
		b.WriteString(v)
	case list:
		many("]", "e", v)
	case dict:
		many("}", "u", v)
	default:
		panic(fmt.Sprintf("%T", v))
	}
}

// modelBlock is a block of the plain allocator, free or not.
type modelBlock struct {
	addr, size, requested uint64
	state                 string // as a snapshot spells it
	line                  int    // of the program; 0: not recorded
}

type modelSegment struct {
	addr, size, stream uint64
	small              bool
	line               int
	blocks             []*modelBlock
}

// model is the caching allocator, after the text of CUDACachingAllocator.cpp, without lists: everything is looked for from end to end. It
// writes the history that PyTorch would, and beside it what the events must be.
type model struct {
	rng       *rand.Rand
	divisions map[uint64]uint64 // by MiB
	maxSplit  uint64
	segments  []*modelSegment
	next      uint64 // address of the next segment
	us        uint64 // now, microseconds
	last      uint64 // time of the latest entry, nanoseconds: each has its own
	recording bool
	sized     bool // it writes the sizes of blocks
	entries   list
	want      []event.Event
	lines     []int // of the stacks of want
}

func (m *model) totals() (allocated, reserved uint64) {
	for _, s := range m.segments {
		reserved += s.size
		for _, b := range s.blocks {
			if b.state == "active_allocated" {
				allocated += b.size
			}
		}
	}
	return allocated, reserved
}

// roundUp is round_size.
func (m *model) roundUp(n uint64) uint64 {
	power := uint64(1)
	for power*2 <= n {
		power *= 2
	}
	if d := m.divisions[min(max(power/mib, 1), 1<<15)]; d > 1 && n > 512*d {
		for at := power; ; at += max(512, power/d) {
			if at >= n {
				return at
			}
		}
	}
	for at := uint64(512); ; at += 512 {
		if at >= n {
			return at
		}
	}
}

func frames(line int) any {
	if line == 0 {
		return nil
	}
	return list{dict{"name", "main", "filename", "/home/a/train.py", "line", line}}
}

// record writes an entry, and what event it must come to.
func (m *model) record(action string, addr, size, block, stream uint64, line int, e event.Event) {
	if !m.recording {
		return
	}
	m.us += m.rng.Uint64N(3) // often the same microsecond as before
	x := dict{"action", action, "size", size, "stream", stream, "time_us", m.us, "frames", frames(line)}
	if action == "oom" {
		x = append(x, "device_free", 0)
	} else {
		x = append(x, "addr", addr)
	}
	if m.sized && block != size {
		x = append(x, "block_size", block)
	}
	m.entries = append(m.entries, x)
	m.last = max(m.last+1, m.us*1000)
	if e == (event.Event{}) {
		return
	}
	e.Addr, e.Device.Type, e.Time, e.Context, e.Handle = addr, event.DeviceCUDA, m.last, event.Unknown, event.Unknown
	if e.Layer == event.LayerAllocator {
		e.Allocated, e.Reserved = m.totals()
		e.Stream = stream
	} else {
		e.Requested, e.Stream, e.Allocated, e.Reserved = event.Unknown, event.Unknown, event.Unknown, event.Unknown
	}
	m.want, m.lines = append(m.want, e), append(m.lines, line)
}

// fit is the smallest free block that a request may have.
func (m *model) fit(size, stream uint64, small bool) (s *modelSegment, at int) {
	var best *modelBlock
	for _, x := range m.segments {
		for i, b := range x.blocks {
			if x.small != small || x.stream != stream || b.state != "inactive" || b.size < size {
				continue
			}
			if best == nil || b.size < best.size || b.size == best.size && b.addr < best.addr {
				best, s, at = b, x, i
			}
		}
	}
	if best != nil && m.maxSplit > 0 && (size < m.maxSplit && best.size >= m.maxSplit || size >= m.maxSplit && best.size >= size+20*mib) {
		return nil, 0
	}
	return s, at
}

func (m *model) alloc(requested uint64) {
	size, stream, line := m.roundUp(requested), m.rng.Uint64N(2)*0x55550000, 1+m.rng.IntN(9)
	small := size <= mib
	s, at := m.fit(size, stream, small)
	if s == nil {
		n := (size + 2*mib - 1) / (2 * mib) * (2 * mib)
		if small {
			n = 2 * mib
		} else if size < 10*mib {
			n = 20 * mib
		}
		s = &modelSegment{addr: m.next, size: n, stream: stream, small: small, line: line,
			blocks: []*modelBlock{{addr: m.next, size: n, state: "inactive"}}}
		if !m.recording {
			s.line = 0
		}
		m.next += n
		if m.rng.IntN(2) == 0 {
			m.next += 2 * mib
		}
		m.segments = append(m.segments, s)
		m.record("segment_alloc", s.addr, n, n, stream, line, event.Event{Kind: event.KindAlloc, Layer: event.LayerDevice, Size: n,
			Call: "segment_alloc"})
	}
	b := s.blocks[at]
	if rest := b.size - size; small && rest >= 512 || !small && rest > mib && (m.maxSplit == 0 || size < m.maxSplit) {
		s.blocks = slices.Insert(s.blocks, at+1, &modelBlock{addr: b.addr + size, size: rest, state: "inactive"})
		b.size = size
	}
	b.state, b.requested, b.line = "active_allocated", requested, line
	if !m.recording {
		b.line = 0
	}
	m.record("alloc", b.addr, requested, b.size, stream, line, event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Size: b.size,
		Requested: requested})
}

// pick is a block in a state; nil: there is none.
func (m *model) pick(state string) (*modelSegment, *modelBlock) {
	var of []*modelSegment
	var all []*modelBlock
	for _, s := range m.segments {
		for _, b := range s.blocks {
			if b.state == state {
				of, all = append(of, s), append(all, b)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	i := m.rng.IntN(len(all))
	return of[i], all[i]
}

func (m *model) free() {
	s, b := m.pick("active_allocated")
	if b == nil {
		return
	}
	b.state = "active_pending_free"
	m.record("free_requested", b.addr, b.requested, b.size, s.stream, 0, event.Event{Kind: event.KindFree, Layer: event.LayerAllocator,
		Size: b.size, Requested: b.requested})
	if m.rng.IntN(5) > 0 { // else it waits for another stream
		m.complete(s, b)
	}
}

func (m *model) complete(s *modelSegment, b *modelBlock) {
	m.record("free_completed", b.addr, b.requested, b.size, s.stream, 0, event.Event{})
	b.state, b.line = "inactive", 0
	var joined []*modelBlock
	for _, x := range s.blocks {
		if n := len(joined); n > 0 && joined[n-1].state == "inactive" && x.state == "inactive" {
			joined[n-1].size += x.size
			continue
		}
		joined = append(joined, x)
	}
	s.blocks = joined
}

// empty is empty_cache.
func (m *model) empty() {
	for _, s := range slices.Clone(m.segments) {
		if len(s.blocks) == 1 && s.blocks[0].state == "inactive" {
			m.segments = slices.DeleteFunc(m.segments, func(x *modelSegment) bool { return x == s })
			m.record("segment_free", s.addr, s.size, s.size, s.stream, 0,
				event.Event{Kind: event.KindFree, Layer: event.LayerDevice, Size: event.Unknown, Call: "segment_free"})
		}
	}
}

func (m *model) step() {
	switch n := m.rng.IntN(40); {
	case n == 0:
		m.empty()
	case n == 1:
		m.record("oom", 0, 1<<40, 1<<40, 0, 5, event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerAllocator, Size: 1 << 40,
			Requested: event.Unknown})
	case n < 5:
		if s, b := m.pick("active_pending_free"); b != nil {
			m.complete(s, b)
		}
	case n < 20:
		m.free()
	default:
		m.alloc(1 + m.rng.Uint64N(1<<(8+m.rng.IntN(19))))
	}
}

// snapshot is what PyTorch writes.
func (m *model) snapshot() dict {
	var segments list
	for _, s := range m.segments {
		var blocks list
		for _, b := range s.blocks {
			blocks = append(blocks, dict{"address", b.addr, "size", b.size, "requested_size", b.requested, "state", b.state, "frames",
				frames(b.line)})
		}
		segments = append(segments, dict{
			"device", 0, "address", s.addr, "total_size", s.size, "stream", s.stream, "frames", frames(s.line), "blocks", blocks,
		})
	}
	m.rng.Shuffle(len(segments), func(i, j int) { segments[i], segments[j] = segments[j], segments[i] })
	limit := any(m.maxSplit)
	if m.maxSplit == 0 {
		limit = uint64(1<<64 - 1) // -1
	}
	var divisions dict
	for k, n := range m.divisions {
		divisions = append(divisions, fmt.Sprint(k), n)
	}
	return dict{
		"segments", segments, "device_traces", list{m.entries}, "block_sizes", m.sized,
		"allocator_settings", dict{"expandable_segments", false, "max_split_size", limit, "roundup_power2_divisions", divisions},
	}
}

// readAll is the events of a snapshot, those of its history apart, which come with times of the history.
func readAll(t *testing.T, s *Source) (before, history []event.Event) {
	t.Helper()
	for {
		got, err := s.Read(make([]event.Event, 0, 7))
		for i := range got {
			if got[i].Time < s.from {
				before = append(before, got[i])
			} else {
				history = append(history, got[i])
			}
		}
		if errors.Is(err, io.EOF) {
			return before, history
		}
		require.NoError(t, err)
		s.Annotations()
	}
}

// TestModel: a plain allocator writes a snapshot, of which each event has its block, its totals, its line and its time. What was there
// before the history and was given back in it can be larger than it is shown, as
// is noted; all else is exact.
func TestModel(t *testing.T) {
	for seed := range uint64(48) {
		m := &model{rng: rand.New(rand.NewPCG(seed, 3)), next: 0x7f00_0000_0000, us: 1_700_000_000_000_000}
		switch seed % 3 {
		case 1:
			m.maxSplit = 24 * mib
		case 2:
			m.divisions = map[uint64]uint64{1: 4, 2: 2, 4: 8, 8: 1, 16: 4, 32: 2, 64: 16}
		}
		late := seed%4 > 0
		m.sized = seed%8 == 7
		for range map[bool]int{true: 300}[late] {
			m.step()
		}
		m.recording = true
		for range 300 {
			m.step()
		}
		s, err := New(bytes.NewReader(pickled(m.snapshot())))
		require.NoError(t, err, seed)
		requireModel(t, m, s, late && !m.sized, fmt.Sprintf("seed %d", seed))
	}
}

// requireModel compares a snapshot with the model: its events, and what is in use at its end.
func requireModel(t *testing.T, m *model, s *Source, uncertain bool, name string) {
	t.Helper()
	before, got := readAll(t, s)
	require.Empty(t, before, "%s: what was before has no line", name)
	require.Len(t, got, len(m.want), name)
	inexact := false
	for i := range got {
		g, w := &got[i], m.want[i]
		if m.lines[i] > 0 {
			require.Equal(t, m.lines[i], s.Stack(g.Stack).Frames[0].Line, name)
		}
		w.Stack = g.Stack
		if uncertain && w.Layer == event.LayerAllocator {
			most := uint64(mib)
			if m.maxSplit > 0 && w.Size >= m.maxSplit {
				most = 20 * mib
			}
			require.LessOrEqual(t, w.Size-g.Size, most, "%s, event %d", name, i)
			require.True(t, g.Kind == event.KindFree || g.Size == w.Size, "%s, event %d: what was allocated in the history is exact", name, i)
			require.LessOrEqual(t, g.Allocated, w.Allocated, "%s, event %d", name, i)
			inexact = inexact || g.Size != w.Size
			w.Size, w.Allocated = g.Size, g.Allocated
		}
		require.Equal(t, w, *g, "%s, event %d", name, i)
	}
	require.NoError(t, s.Rewind())
	h, totals := replay(t, s)
	allocated, reserved := m.totals()
	a := h.Totals().Accounts[0]
	require.Equal(t, []uint64{allocated, reserved, reserved}, []uint64{a.Allocated, a.Reserved, a.SegmentBytes}, name)
	require.Equal(t, a.Allocated, a.Live.Bytes+a.BeforeBlocks.Bytes, "%s: in known blocks", name)
	require.Zero(t, a.Gaps+a.LostFrees+a.UnknownFrees, name)
	require.NotEmpty(t, totals)
	if notes := fmt.Sprint(s.Notes()); inexact || !uncertain {
		more := map[bool]string{false: "up to 1 MiB", true: "up to 20 MiB"}[m.maxSplit > 0]
		require.Equal(t, inexact, strings.Contains(notes, more), "%s: %s", name, notes)
	}
}
