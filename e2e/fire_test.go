// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// fire allocates and frees in 16 threads and as many streams at full speed, while another thread forks children that end at
// once. Each line of DIR/counters is progress. When it is released, it holds what it has.
const fire = `
import os, random, threading, time, torch, warnings
warnings.simplefilter('ignore')
threads, kept, made = 16, {}, [0] * 16
go = lambda: os.path.exists('DIR/go')
def work(n):
    r, mine = random.Random(n), []
    with torch.cuda.stream(torch.cuda.Stream()):
        while not go():
            for _ in range(200):
                mine.append(torch.empty(r.choice((1, 700, 5000, 300000, 3000000)), dtype=torch.uint8, device='cuda'))
                if len(mine) > 40:
                    del mine[::r.randrange(2, 5)]
            made[n] += 1
            if r.random() < 0.02:
                torch.cuda.empty_cache()
    kept[n] = mine
def storm():
    while not go():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
def beat():
    last = 0
    with open('DIR/counters', 'w') as f:
        while not go():
            time.sleep(0.01)
            if sum(made) > last:
                last = sum(made)
                print(file=f, flush=True)
before = [torch.empty(1000 * n, dtype=torch.uint8, device='cuda') for n in range(1, 50)]
all = [threading.Thread(target=work, args=(n,)) for n in range(threads)] + [threading.Thread(target=f) for f in (storm, beat)]
for t in all:
    t.start()
print('READY', os.getpid(), flush=True)
for t in all:
    t.join()
print('DONE', torch.cuda.memory_allocated(), flush=True)
while not os.path.exists('DIR/hold'):
    time.sleep(0.01)
`

// readBack is a recording that was read to its end.
type readBack struct {
	heap   *heap.Heap
	events uint64
	info   *recording.Info
	end    *recording.End // nil: it was cut off
	err    error          // that ended it; nil: the end of the file
}

func readRecording(t *testing.T, path string) *readBack {
	t.Helper()
	r, err := recording.Open(path)
	require.NoError(t, err)
	defer r.Close()
	out := &readBack{heap: heap.New(), info: r.Info()}
	out.err = out.heap.Replay(r)
	out.events, out.end = out.heap.Totals().Events, r.End()
	return out
}

// checkLaw checks that each run of each probe has one outcome, that what was emitted is in the recording, and that what was lost
// lies in its loss intervals. It gives the number of lost events.
func (r *readBack) checkLaw(t *testing.T) uint64 {
	t.Helper()
	require.NoError(t, r.err)
	require.NotNil(t, r.end)
	var emitted, dropped uint64
	for _, h := range r.end.Hits {
		sum := h.Emitted
		for _, n := range h.Quiet {
			sum += n
		}
		for reason, n := range h.Dropped {
			sum, dropped = sum+n, dropped+n
			require.True(t, n == 0 || reason == "ring full", "%s: %d", reason, n)
		}
		require.Equal(t, h.Hits, sum, "%+v", h)
		emitted += h.Emitted
	}
	require.Equal(t, emitted, r.events+r.end.After)
	totals, last, inHoles := r.heap.Totals(), r.info.Attached, uint64(0)
	for _, h := range totals.LossIntervals {
		require.GreaterOrEqual(t, h.From, last, "%+v", totals.LossIntervals)
		require.Greater(t, h.To, h.From)
		last, inHoles = h.To, inHoles+h.Events
	}
	require.Equal(t, dropped, inHoles)
	r.checkTotals(t)
	for _, g := range totals.Gaps {
		require.NotEmpty(t, totals.LossIntervals, "a gap, and no event was lost: %+v", g)
		require.Greater(t, g.Time, totals.LossIntervals[0].From)
	}
	return dropped
}

// checkTotals checks that what is known and what was lost add up to the totals that the allocator's events carry.
func (r *readBack) checkTotals(t *testing.T) {
	t.Helper()
	totals := r.heap.Totals()
	require.Zero(t, totals.Ignored)
	for i := range totals.Accounts {
		a := &totals.Accounts[i]
		require.Equal(t, int64(a.Allocated), int64(a.Live.Bytes+a.Before)+a.Lost, "%+v", a)
	}
}

var lostSoFar = regexp.MustCompile(`lost (\d[\d,]*) events`)

// lost is what the last line on the terminal says.
func (c *command) lost() int {
	all := lostSoFar.FindAllStringSubmatch(c.stderr.String(), -1)
	if all == nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.ReplaceAll(all[len(all)-1][1], ",", ""))
	return n
}

// TestFire: a small ring, 16 threads and a storm of forks. Thousands of events are lost; each of them is counted, the time of it is
// known, and once it is over the live set is the allocator's again, block for block.
func TestFire(t *testing.T) {
	p := startPython(t, fire).ready(t)
	c := startCommand(t, p, "--ring-size", "64KiB")
	eventually(t, "losses", func() bool { return c.lost() > 1000 })
	p.release(t)
	line := p.await(t, "DONE")
	eventually(t, "the end of the losses", func() bool {
		before := c.lost()
		time.Sleep(time.Second)
		return c.lost() == before
	})
	eventually(t, "the comparison after the losses", func() bool { return strings.Contains(c.stderr.String(), "put the live set right") })
	healed := bootTime()
	c.interrupt(t)
	inuse, _ := c.profiles(t)
	checkAllocated(t, inuse, line)
	for _, s := range inuse.Sample {
		require.Positive(t, s.Value[2], "no bytes without a block: %v", s.Label)
	}
	r := readRecording(t, filepath.Join(c.out(), "trace.gputrace"))
	dropped := r.checkLaw(t)
	require.Greater(t, dropped, uint64(1000))
	losses := r.heap.Totals().LossIntervals
	require.Less(t, losses[len(losses)-1].To, healed, "the loss is over")
	require.Zero(t, r.heap.Totals().Accounts[0].Lost)
	said := regexp.MustCompile(`lost +[\d,]+ events: ring full [\d,]+\n +[\d,]+ events? from \+\d+\.\d{3} s to \+\d+\.\d{3} s, pid \d+\n`)
	require.Regexp(t, said, c.stdout.String())
	again, _ := report(t, c.out())
	require.Equal(t, said.FindString(c.stdout.String()), said.FindString(again))
	t.Logf("%d of %d events lost in %d loss intervals", dropped, r.events+dropped, len(losses))
}

// fireRounds is how often something is killed at a random point; GPUTRACE_ROUNDS says more.
func fireRounds(t *testing.T, n int) int {
	t.Helper()
	if text := os.Getenv("GPUTRACE_ROUNDS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	return n
}

// TestTargetKilledAnywhere kills a job at full speed: all that was received is written, and adds up.
func TestTargetKilledAnywhere(t *testing.T) {
	loop := func(t *testing.T) *target {
		return startIn(t, t.TempDir(), nil, filepath.Join(env.programs, "hotloop"), "--batches", "1000000000", "--calls", "2000")
	}
	threads := func(t *testing.T) *target { return startPython(t, fire).ready(t) }
	for name, tt := range map[string]struct {
		start  func(t *testing.T) *target
		rounds int
	}{"one thread": {loop, 4}, "16 threads": {threads, 1}} {
		t.Run(name, func(t *testing.T) {
			for range fireRounds(t, tt.rounds) {
				p := tt.start(t)
				c := startCommand(t, p, "--ring-size", "64KiB", "-f", "none", "--no-holders")
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // any moment will do
				p.signal(t, syscall.SIGKILL)
				require.Contains(t, []int{0, 8}, c.code(t), c.stderr.String())
				r := readRecording(t, filepath.Join(c.out(), "trace.gputrace"))
				require.Equal(t, recording.ReasonExited, r.end.Reason)
				t.Logf("%d events, %d lost", r.events, r.checkLaw(t))
				require.NotContains(t, c.stderr.String(), "please report")
			}
		})
	}
}

// TestKilledAnywhere kills gputrace at any moment between its start and half a second of tracing, again and again: the job goes
// on, its code is as before, what was recorded can be read up to the last whole frame, and the next attach finds nothing wrong.
func TestKilledAnywhere(t *testing.T) {
	p := startPython(t, fire).ready(t)
	all := functions(t, p, "libc10.so", "_ZN3c1027reportMemoryUsageToProfilerE", "_ZN3c1027reportOutOfMemoryToProfilerE")
	all = append(all, functions(t, p, "libcuda.so", "cuMemAlloc_v2", "cuMemFree_v2")...)
	begin := time.Now()
	c := startCommand(t, p, "-f", "none")
	most := time.Since(begin) + 500*time.Millisecond
	for round := range fireRounds(t, 4) {
		if round > 0 {
			c = newCommand(t, "-p", fmt.Sprint(p.pid), "-o", "OUT", "-f", "none").start(t)
			time.Sleep(time.Duration(rand.Int64N(int64(most))))
		}
		c.signal(t, syscall.SIGKILL)
		require.Equal(t, -1, c.code(t))
		requireUnchanged(t, p, all)
		p.awaitSteps(t, p.steps()+3)
		checkCutOff(t, c)
	}
	c = startCommand(t, p, "-f", "none", "--no-holders")
	p.awaitSteps(t, p.steps()+3)
	p.release(t)
	line := p.await(t, "DONE")
	c.interrupt(t)
	inuse, _ := readProfiles(t, c.out(), "trace.gputrace")
	checkAllocated(t, inuse, line)
	readRecording(t, filepath.Join(c.out(), "trace.gputrace")).checkLaw(t)
	require.NotContains(t, c.stderr.String(), "please report")
	p.touch(t, "hold")
	p.wait(t)
}

// checkCutOff reads what a killed gputrace has left, if it came to record anything.
func checkCutOff(t *testing.T, c *command) {
	t.Helper()
	path := filepath.Join(c.out(), "trace.gputrace")
	if st, err := os.Stat(path); err != nil || st.Size() == 0 { // it did not come so far
		return
	}
	r := readRecording(t, path)
	if r.err != nil {
		var damage *recording.DamageError
		require.ErrorAs(t, r.err, &damage)
	}
	require.Nil(t, r.end)
	if r.events > 0 {
		r.checkTotals(t)
	}
	t.Logf("%d events until %v", r.events, r.err)
}

// anonymousLine is memory that no file is behind.
var anonymousLine = regexp.MustCompile(`(?m)^RssAnon:\s+(\d+) kB`)

// soakGrowth is how much more memory gputrace may have in the end than in the second quarter of the time, kB.
const soakGrowth = 32 << 10

// TestSoak runs the fire for seconds, or, as make soak has it, for an hour: no run of a probe without an outcome, in the end
// the live set is the allocator's, and gputrace does not grow.
func TestSoak(t *testing.T) {
	lasts := 8 * time.Second
	if text := os.Getenv("GPUTRACE_SOAK"); text != "" {
		var err error
		lasts, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	p := startPython(t, fire).ready(t)
	c := startCommand(t, p, "--max-size", "32MiB", "--max-stacks", "1000", "-f", "none")
	var sizes []int
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(max(100*time.Millisecond, lasts/1000)) {
		sizes = append(sizes, anonymousSize(t, c))
		p.awaitSteps(t, p.steps()+1)
	}
	p.release(t)
	line := p.await(t, "DONE")
	eventually(t, "all losses to be put right", func() bool {
		return c.lost() == 0 || strings.Contains(c.stderr.String(), "put the live set right")
	})
	c.interrupt(t)
	inuse, alloc := readProfiles(t, c.out(), "trace.gputrace")
	checkAllocated(t, inuse, line)
	r := readRecording(t, filepath.Join(c.out(), "trace.gputrace"))
	dropped := r.checkLaw(t)
	require.NotContains(t, c.stderr.String(), "please report")
	quarter := len(sizes) / 4
	first, last := median(sizes[quarter:2*quarter+1]), median(sizes[3*quarter:])
	t.Logf("%d allocations, %d events, %d lost; %d kB in the second quarter of the time, %d kB in the last",
		sum(t, alloc, "alloc_objects", "torch"), r.events, dropped, first, last)
	require.LessOrEqual(t, last, first+soakGrowth)
}

// median of sizes: a reading of holders takes much memory for a moment.
func median(sizes []int) int {
	return slices.Sorted(slices.Values(sizes))[len(sizes)/2]
}

func anonymousSize(t *testing.T, c *command) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	require.NoError(t, err)
	m := anonymousLine.FindSubmatch(b)
	require.NotNil(t, m, "%s", b)
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return n
}

// atRest reports whether gputrace has nothing to do for a while: no thread of it runs, or wants to.
func (c *command) atRest() bool {
	tasks := filepath.Join("/proc", itoa(c.cmd.Process.Pid), "task", "*", "stat")
	for range 20 {
		paths, _ := filepath.Glob(tasks)
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if _, state, ok := strings.Cut(string(b), ") "); err == nil && (!ok || state[0] != 'S') {
				return false
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

// startFake starts a program that reports as PyTorch does. It waits at release, and holds at its end where it has a --hold.
func startFake(t *testing.T, name string, args ...string) *target {
	t.Helper()
	dir := t.TempDir()
	args = append(args, "--go", filepath.Join(dir, "go"))
	if name == "forks" {
		args = append(args, "--hold", filepath.Join(dir, "hold"))
	}
	return startIn(t, dir, nil, filepath.Join(env.programs, name), args...)
}

// TestFireOfOneEvent: of a process that made one event all is lost, by what another one did. That is not a process which used no memory.
func TestFireOfOneEvent(t *testing.T) {
	noisy := startFake(t, "hotloop", "--batches", "1", "--calls", "100000").ready(t)
	one := startFake(t, "forks").ready(t)
	c := newCommand(t, "-p", fmt.Sprintf("%d,%d", noisy.pid, one.pid), "-o", "OUT", "--ring-size", "64KiB", "-f", "none").start(t).ready(t)
	c.freeze(t)
	noisy.release(t)
	noisy.await(t, "batch 1")
	one.release(t)
	one.done(t)
	c.thaw(t)
	c.interrupt(t)
	require.NotContains(t, c.stderr.String(), "used no GPU memory")
	require.Regexp(t, fmt.Sprintf(`(?m)^ *pid %d .* - +unknown +unknown +unknown +unknown +0$`, one.pid), c.stdout.String())
	r := readRecording(t, filepath.Join(c.out(), fmt.Sprintf("pid%d", one.pid), "trace.gputrace"))
	require.NoError(t, r.err)
	require.Zero(t, r.events)
	totals := r.heap.Totals()
	require.Len(t, totals.LossIntervals, 1)
	require.EqualValues(t, 1, totals.LossIntervals[0].Events)
	require.EqualValues(t, 1, *r.end.Lost)
	require.NotContains(t, c.stdout.String(), "received", "the equation must hold")
}

func sumHoles(b *heap.Totals) (n uint64) {
	for _, h := range b.LossIntervals {
		n += h.Events
	}
	return n
}

// TestFireOfJob: two processes share a small ring. The recording of each has the loss intervals, and the live set
// of each is the allocator's again.
func TestFireOfJob(t *testing.T) {
	both := []*target{startPython(t, fire), startPython(t, fire)}
	for _, p := range both {
		p.ready(t)
	}
	quiet := startFake(t, "forks").ready(t)
	pids := fmt.Sprintf("%d,%d,%d", both[0].pid, both[1].pid, quiet.pid)
	c := newCommand(t, "-p", pids, "-o", "OUT", "--ring-size", "64KiB", "-f", "none", "--no-holders").start(t).ready(t)
	eventually(t, "losses", func() bool { return c.lost() > 1000 })
	want := map[uint32]uint64{}
	for _, p := range both {
		p.release(t)
		n, err := strconv.ParseUint(strings.TrimPrefix(p.await(t, "DONE"), "DONE "), 10, 64)
		require.NoError(t, err)
		want[uint32(p.pid)] = n
	}
	eventually(t, "the comparisons after the losses", func() bool { return strings.Count(c.stderr.String(), "put the live set right") >= 2 })
	eventually(t, "an empty ring", c.atRest)
	quiet.release(t)
	quiet.done(t)
	time.Sleep(time.Second) // what the small ring holds
	c.interrupt(t)
	paths, err := filepath.Glob(filepath.Join(c.out(), "*", "trace.gputrace"))
	require.NoError(t, err)
	require.Len(t, paths, 3)
	got, losses, lost, dropped := map[uint32]uint64{}, map[int]int{}, uint64(0), uint64(0)
	for _, path := range paths {
		r := readRecording(t, path)
		require.NoError(t, r.err)
		r.checkTotals(t)
		totals := r.heap.Totals()
		got[totals.Accounts[0].PID] = totals.Accounts[0].Allocated
		require.Zero(t, totals.Accounts[0].Lost)
		lost += sumHoles(&totals)
		losses[int(totals.Accounts[0].PID)] = len(totals.LossIntervals)
		dropped = 0 // of all: the probes are the session's
		for _, h := range r.end.Hits {
			for _, n := range h.Dropped {
				dropped += n
			}
		}
		require.Equal(t, sumHoles(&totals), *r.end.Lost)
	}
	want[uint32(quiet.pid)] = 4096 + 1024 // a block before the start, and one for the child
	require.Equal(t, want, got)
	require.NotZero(t, losses[both[0].pid])
	require.NotZero(t, losses[both[1].pid])
	require.Zero(t, losses[quiet.pid], "it lost nothing")
	require.Equal(t, dropped, lost)
}
