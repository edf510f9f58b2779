// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// dumps is how many maps are taken of each busy job; .ci/versions asks for more.
var dumps = flag.Int("dumps", 10, "maps that are taken of each job at full speed")

// tight allocates and frees in four threads, two of them on streams of their own, as fast as the interpreter can.
const tight = `
import os, random, threading, time, torch
torch.cuda.init()
def work(n):
    r, mine = random.Random(n), []
    sizes = [r.choice((1, 700, 5000, 300000, 3000000, 30000000)) for _ in range(1000)]
    with torch.cuda.stream(torch.cuda.Stream() if n % 2 else None):
        while True:
            for size in sizes:
                mine.append(torch.empty(size, dtype=torch.uint8, device='cuda'))
                if len(mine) > 60:
                    del mine[:: 2 + size % 3]
print('READY', os.getpid(), flush=True)
while not os.path.exists('DIR/go'):
    time.sleep(0.01)
kept = [torch.empty(1000 * n, dtype=torch.uint8, device='cuda') for n in range(1, 1000)]
for n in range(4):
    threading.Thread(target=work, args=(n,), daemon=True).start()
print('DONE', flush=True)
time.sleep(600)
`

// change is what one event did to the blocks of device 0.
type change struct {
	time        uint64
	addr, size  uint64
	requested   uint64
	total       uint64 // what the allocator then counts as allocated
	alloc, none bool   // none: an event that changes nothing
}

// changes follows a job from before its first allocation.
type changes struct {
	tracer *tracer.Tracer
	list   []change
	err    error
	ended  chan struct{}
}

func followChanges(t *testing.T, pid int) *changes {
	t.Helper()
	p, err := process.Open(pid)
	require.NoError(t, err)
	o := options()
	o.RingBytes = 256 << 20 // the job must not be faster than its events are read
	live := tracer.Open(o)
	t.Cleanup(func() { _ = live.Close() })
	_, err = live.Add(p)
	require.NoError(t, err)
	c := &changes{tracer: live, ended: make(chan struct{})}
	go c.read()
	return c
}

func (c *changes) read() {
	defer close(c.ended)
	buf := make([]event.Event, 0, 4096)
	for c.err == nil {
		buf, c.err = c.tracer.Read(buf[:0])
		for i := range buf {
			if e := &buf[i]; e.Layer == event.LayerAllocator && e.Device.Index == 0 {
				alloc := e.Kind == event.KindAlloc
				c.list = append(c.list, change{e.Time, e.Addr, e.Size, e.Requested, e.Allocated, alloc, !alloc && e.Kind != event.KindFree})
			}
		}
	}
	if errors.Is(c.err, io.EOF) {
		c.err = nil
	}
}

// stop holds the job still and takes the last events.
func (c *changes) stop(t *testing.T, p *target) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	c.tracer.Stop()
	<-c.ended
	require.NoError(t, c.err)
	require.Zero(t, c.tracer.Lost())
	require.NotEmpty(t, c.list)
}

// live is the blocks that the program holds, kept by events: their addresses, and a sum by which two sets are compared.
type live struct {
	blocks map[uint64]change
	sum    uint64
	bytes  uint64
}

func (l *live) apply(t *testing.T, c *change) {
	t.Helper()
	old, held := l.blocks[c.addr]
	switch {
	case c.none:
	case c.alloc:
		require.False(t, held, "block at %#x is handed out twice", c.addr)
		l.blocks[c.addr] = *c
		l.sum += mixed(c.addr, c.size, c.requested)
		l.bytes += c.size
	default:
		require.True(t, held, "block at %#x is freed and was not held", c.addr)
		delete(l.blocks, c.addr)
		l.sum -= mixed(old.addr, old.size, old.requested)
		l.bytes -= old.size
	}
	require.Equal(t, c.total, l.bytes, "the allocator's own total")
}

// mixed is a hash of a block (the finalizer of MurmurHash3, on each field in turn).
func mixed(fields ...uint64) uint64 {
	h := uint64(1)
	for _, f := range fields {
		h ^= f
		h ^= h >> 33
		h *= 0xff51afd7ed558ccd
		h ^= h >> 33
		h *= 0xc4ceb9fe1a85ec53
		h ^= h >> 33
	}
	return h
}

// seen is a map of the allocator state: what must equal the live set at some moment of a window.
type seen struct {
	from, to   uint64
	blocks     int
	sum, bytes uint64
	matched    bool
}

func (s *seen) add(b *inspect.Block) {
	if b.State == inspect.StateAllocated {
		s.blocks++
		s.sum += mixed(b.Addr, b.Size, b.Requested)
		s.bytes += b.Size
	}
}

// checkSeen replays the events and looks for each map among the live sets that there were within its window.
func checkSeen(t *testing.T, c *changes, all []*seen) {
	t.Helper()
	l := live{blocks: map[uint64]change{}}
	first := 0 // of those whose window is not over
	for i := range c.list {
		l.apply(t, &c.list[i])
		until := ^uint64(0)
		if i+1 < len(c.list) {
			until = c.list[i+1].time
		}
		for first < len(all) && all[first].to < c.list[i].time {
			first++
		}
		for _, s := range all[first:] {
			if s.from > until {
				break
			}
			s.matched = s.matched || s.to >= c.list[i].time && s.blocks == len(l.blocks) && s.bytes == l.bytes && s.sum == l.sum
		}
	}
	for i, s := range all {
		require.True(t, s.matched, "map %d of %d equals no live set: %+v", i, len(all), s)
	}
}

// startBusy starts a job that allocates at full speed once it is released, and follows it.
func startBusy(t *testing.T, name string) (*target, *changes) {
	t.Helper()
	var p *target
	if name == "tight loop" {
		p = startPython(t, tight).ready(t)
	} else {
		args := append([]string{"--cold", "--steps", "0", "--counters", "DIR/counters"}, trainingSize[name]...)
		p = startTraining(t, name, args...).ready(t)
	}
	c := followChanges(t, p.pid)
	p.release(t)
	if name == "tight loop" {
		p.done(t)
	} else {
		p.awaitSteps(t, 3)
	}
	return p, c
}

var trainingSize = map[string][]string{"gpt.py": {"--layers", "2", "--width", "128", "--vocab", "1000"}}

// busyJobs are such jobs: the loop, and training scripts.
func busyJobs(t *testing.T) []string {
	t.Helper()
	if torchVersion(t)[0] < 2 { // gpt.py needs 2.0
		return []string{"tight loop", "mlp.py"}
	}
	return []string{"tight loop", "gpt.py"}
}

// tally is what became of the maps of one job.
type tally struct{ read, changing, unsettled, sweeps, balanced, events int }

func (a *tally) add(b tally) {
	a.read, a.changing, a.unsettled = a.read+b.read, a.changing+b.changing, a.unsettled+b.unsettled
	a.sweeps, a.balanced, a.events = a.sweeps+b.sweeps, a.balanced+b.balanced, a.events+b.events
}

// inRounds takes n maps, some of each of several processes: all events of one are kept until it ends.
func inRounds(t *testing.T, n int, round func(t *testing.T, name string, n int) tally) {
	t.Helper()
	const most = 100
	for _, name := range busyJobs(t) {
		t.Run(name, func(t *testing.T) {
			var all tally
			for left := n; left > 0; left -= most {
				t.Run(fmt.Sprint(left), func(t *testing.T) { all.add(round(t, name, min(left, most))) })
			}
			for again := 1; all.read == 0 && again <= 5; again++ { // on a slow machine something can change in each map of a round
				t.Run(fmt.Sprint("again ", again), func(t *testing.T) { all.add(round(t, name, min(n, most))) })
			}
			t.Logf("%+v", all)
			require.Positive(t, all.read)
		})
	}
}

// TestDumpsEqualEvents takes maps of a job at full speed with the program. Each is the live set of the events at some
// moment while the program ran, or it says what changed meanwhile.
func TestDumpsEqualEvents(t *testing.T) { inRounds(t, *dumps, dumpBusy) }

func dumpBusy(t *testing.T, name string, n int) tally {
	t.Helper()
	p, c := startBusy(t, name)
	var all []*seen
	for range n {
		s := &seen{from: bootTime()}
		stdout, stderr, code := dump(t, p.pid, "-f", "json", "--no-holders")
		s.to = bootTime()
		require.Zero(t, code, stderr)
		d := parseDumped(t, stdout)
		checkBalance(t, d)
		if len(d.Devices) > 0 && d.Devices[0].Changing != nil {
			continue
		}
		s.addDumped(d)
		all = append(all, s)
	}
	c.stop(t, p)
	checkSeen(t, c, all)
	return tally{read: len(all), changing: n - len(all), events: len(c.list)}
}

func (s *seen) addDumped(d *dumped) {
	if len(d.Devices) == 0 { // before CUDA was initialised
		return
	}
	for _, segment := range d.Devices[0].Segments {
		for _, b := range segment.Blocks {
			if b.State != inspect.StateAllocated.String() {
				continue
			}
			requested := inspect.Unknown
			if b.Requested != nil {
				requested = *b.Requested
			}
			s.add(&inspect.Block{Addr: b.Address, Size: b.Size, Requested: requested, State: inspect.StateAllocated})
		}
	}
}

// TestStateEqualsEvents reads the allocator state of a job at full speed within this process, as the recording does. A map is the live
// set at a moment within its window, or of a part of it says how much it is; a sweep has all blocks that no event
// touched within its window, and no other.
func TestStateEqualsEvents(t *testing.T) { inRounds(t, 4**dumps, readBusy) }

func readBusy(t *testing.T, name string, n int) tally {
	t.Helper()
	p, c := startBusy(t, name)
	target, err := process.Open(p.pid)
	require.NoError(t, err)
	var maps []*seen
	var changing []*inspect.DeviceMap
	var sweeps []*inspect.Sweep
	var out tally
	for range n {
		a, err := inspect.Find(target) // as if for the first time
		require.NoError(t, err)
		s, err := a.Sweep(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, s.Devices)
		if s.Devices[0].Balanced {
			out.balanced++
		}
		if s.Settled { // otherwise it is not known when its last change was reported
			sweeps = append(sweeps, s)
		}
		m, err := a.MapNow(t.Context(), 0) // as if there were no quiet moment
		require.NoError(t, err)
		switch d := &m.Devices[0]; {
		case !d.Window.Settled:
			out.unsettled++
		case d.Changing != nil:
			changing = append(changing, d)
		default:
			maps = append(maps, newSeen(d))
		}
	}
	c.stop(t, p)
	checkSeen(t, c, maps)
	checkChanging(t, c, changing)
	out.changing = len(changing)
	checkSweeps(t, c, sweeps)
	out.read, out.sweeps, out.events = len(maps), len(sweeps), len(c.list)
	return out
}

func newSeen(d *inspect.DeviceMap) *seen {
	s := &seen{from: d.Window.From, to: d.Window.To}
	for i := range d.Segments {
		for j := range d.Segments[i].Blocks {
			s.add(&d.Segments[i].Blocks[j])
		}
	}
	return s
}

// checkChanging compares maps of which parts changed with the live set at their instant: the totals are its, what is missing
// among the blocks that stood still lies within the bounds. High is what was not among them plus what may have been renewed, so that it
// also bounds how much of what the map shows was not there.
func checkChanging(t *testing.T, c *changes, maps []*inspect.DeviceMap) {
	t.Helper()
	l, next := live{blocks: map[uint64]change{}}, 0
	for n, m := range maps {
		for ; next < len(c.list) && c.list[next].time <= m.Time; next++ {
			l.apply(t, &c.list[next])
		}
		require.Equal(t, l.bytes, m.Allocated, "map %d of %d: the allocator's own total at that instant", n, len(maps))
		still := uint64(0)
		for _, s := range m.Segments {
			for _, b := range s.Blocks {
				if held, ok := l.blocks[b.Addr]; ok && held.size == b.Size && b.State == inspect.StateAllocated {
					still += b.Size
				}
			}
		}
		require.LessOrEqual(t, m.Changing.BytesLow, l.bytes-still, "map %d of %d", n, len(maps))
		require.GreaterOrEqual(t, m.Changing.BytesHigh, l.bytes-still, "map %d of %d", n, len(maps))
	}
}

// checkSweeps checks each sweep against the live set at its beginning.
func checkSweeps(t *testing.T, c *changes, sweeps []*inspect.Sweep) {
	t.Helper()
	l, next := live{blocks: map[uint64]change{}}, 0
	for n, s := range sweeps {
		for ; next < len(c.list) && c.list[next].time < s.From; next++ {
			l.apply(t, &c.list[next])
		}
		touched := map[uint64]bool{}
		for i := next; i < len(c.list) && c.list[i].time <= s.To; i++ {
			touched[c.list[i].addr] = true
		}
		swept := map[uint64]bool{}
		for _, segment := range s.Devices[0].Segments {
			for _, b := range segment.Blocks {
				if b.State != inspect.StateAllocated || touched[b.Addr] {
					continue
				}
				held, ok := l.blocks[b.Addr]
				require.True(t, ok, "sweep %d: block at %#x, that is not held and that nothing touched", n, b.Addr)
				require.Equal(t, []uint64{held.size, held.requested}, []uint64{b.Size, b.Requested})
				swept[b.Addr] = true
			}
		}
		for addr := range l.blocks {
			require.True(t, swept[addr] || touched[addr], "sweep %d of %d blocks lacks the one at %#x", n, len(swept), addr)
		}
	}
}
