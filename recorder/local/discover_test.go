// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
)

// own makes the name of a program that of this run of the tests: another one can look for its processes at the same
// time. A name has 15 bytes.
func own(name string) string { return fmt.Sprintf("%.7s%d", name, os.Getpid()) }

// named matches the programs of that name.
func named(name string) *regexp.Regexp { return regexp.MustCompile("^" + own(name) + "$") }

// TestStartOne: one process is attached to as such, and the rights that are not needed any more are given up.
func TestStartOne(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1")
	l, m, seen := openMade(t, &recorder.Options{PIDs: []int{p.PID}, Memory: "copy", RingBytes: 4096, MaxStacks: 9, CacheDir: "/c",
		FreeStacks: true})
	require.NoError(t, l.Start(t.Context()))
	require.Equal(t, []string{fmt.Sprint("add ", p.PID)}, m.calls, "the kernel side is loaded while the process is looked at")
	require.EqualValues(t, forResults, m.rights)
	require.False(t, m.options.Job)
	require.True(t, m.options.Steps)
	require.True(t, m.options.FreeStacks)
	require.Equal(t, []any{4096, 9, "/c"}, []any{m.options.RingBytes, m.options.MaxStacks, m.options.CacheDir})
	require.Equal(t, []int{p.PID}, pidsOf(l.Arrived()))
	require.Empty(t, l.Arrived(), "once each")
	require.Empty(t, seen.notices)
	require.Empty(t, seen.warnings)
}

// TestStartMany: a job is attached to only where the kernel takes the programs.
func TestStartMany(t *testing.T) {
	t.Parallel()
	p, q := program(t, "rank0", "libcuda.so.1"), program(t, "rank1", "libc10.so")
	l, m, _ := openMade(t, &recorder.Options{PIDs: []int{p.PID, q.PID}, Memory: "auto", NoSteps: true, Children: true})
	require.NoError(t, l.Start(t.Context()))
	require.Equal(t, []string{"ready", fmt.Sprint("add ", p.PID), fmt.Sprint("add ", q.PID)}, m.calls)
	require.True(t, m.options.Job)
	require.True(t, m.options.Children)
	require.False(t, m.options.Steps)
	require.Len(t, l.Arrived(), 2)

	l, m, _ = openMade(t, &recorder.Options{PIDs: []int{p.PID, q.PID}, Memory: "auto"})
	m.unready = errors.New("no BPF")
	var attach *recorder.AttachError
	require.ErrorAs(t, l.Start(t.Context()), &attach)
	require.Equal(t, p.PID, attach.PID)
	require.ErrorIs(t, attach, m.unready)
	require.Equal(t, []string{"ready"}, m.calls)

	l, m, _ = openMade(t, &recorder.Options{All: true, Memory: "auto"})
	m.unready = errors.New("no BPF")
	require.ErrorAs(t, l.Start(t.Context()), &attach)
	require.Zero(t, attach.PID, "none was named")
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	p := program(t, "cpuprogram")
	l, m, _ := openMade(t, &recorder.Options{PIDs: []int{p.PID}, Memory: "sideways"})
	require.Error(t, l.Start(t.Context()))
	require.Nil(t, m.options, "no tracer is opened")

	var attach *recorder.AttachError
	l, m, _ = openMade(t, &recorder.Options{PIDs: []int{p.PID}, Memory: "auto"})
	err := l.Start(t.Context())
	require.ErrorAs(t, err, &attach)
	require.Equal(t, p.PID, attach.PID)
	require.ErrorIs(t, err, tracer.ErrNoCUDA)
	require.Nil(t, m.options, "nothing costly is done for a process without CUDA")

	const none = 1 << 22 // above the largest PID
	for _, pids := range [][]int{{none}, {none, none + 1}} {
		l, _, _ = openMade(t, &recorder.Options{PIDs: pids, Memory: "auto"})
		err = l.Start(t.Context())
		require.ErrorAs(t, err, &attach)
		require.Equal(t, none, attach.PID)
		require.ErrorIs(t, err, process.ErrNotExist)
	}

	q := program(t, "gpuprogram", "libcuda.so.1")
	l, m, _ = openMade(t, &recorder.Options{PIDs: []int{q.PID}, Memory: "auto"})
	m.refused = errors.New("the verifier says no")
	err = l.Start(t.Context())
	require.ErrorAs(t, err, &attach)
	require.Equal(t, q.PID, attach.PID)
	require.ErrorIs(t, err, m.refused)
	require.Zero(t, m.rights, "nothing is given up where nothing was attached to")
}

// TestStartFollows: of a job, a process without CUDA is followed where that was asked for, and is an error else.
func TestStartFollows(t *testing.T) {
	t.Parallel()
	p, q := program(t, "cpuprogram"), program(t, "cpuprogram")
	for _, o := range []*recorder.Options{{Children: true}, {Wait: true}} {
		o.PIDs, o.Memory = []int{p.PID, q.PID}, "auto"
		l, m, seen := openMade(t, o)
		require.NoError(t, l.Start(t.Context()))
		require.Contains(t, m.calls, fmt.Sprint("expect ", q.PID))
		require.Equal(t, []string{"  following 2 processes with nothing to trace so far"}, seen.notices)
		require.Empty(t, l.Arrived())
	}
	l, m, _ := openMade(t, &recorder.Options{PIDs: []int{p.PID, q.PID}, Memory: "auto"})
	require.ErrorIs(t, l.Start(t.Context()), tracer.ErrNoCUDA)
	require.NotContains(t, m.calls, fmt.Sprint("expect ", p.PID))

	l, m, _ = openMade(t, &recorder.Options{PIDs: []int{p.PID, q.PID}, Memory: "auto", Children: true})
	m.unexpected = errors.New("no place")
	require.ErrorIs(t, l.Start(t.Context()), m.unexpected)
}

// TestAwaitLibrary: a process that has no CUDA yet is waited for, until it ends or the user does not want to wait any more.
func TestAwaitLibrary(t *testing.T) {
	t.Parallel()
	p := program(t, "cpuprogram")
	l, _, seen := openMade(t, &recorder.Options{PIDs: []int{p.PID}, Memory: "auto", Wait: true})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, l.Start(ctx), recorder.ErrInterrupted)
	require.Equal(t, []string{fmt.Sprintf("waiting for pid %d (cpuprogram) to load a CUDA library", p.PID)}, seen.notices)

	time.AfterFunc(30*time.Millisecond, func() { end(t, p) })
	err := l.Start(t.Context())
	require.ErrorIs(t, err, recorder.ErrEndedEarly)
	require.EqualError(t, err, fmt.Sprintf("pid %d ended before it used CUDA", p.PID))
}

// TestEndedBeforeAttach: one that was waited for and ends at the last moment is said to have ended, not to have no CUDA.
func TestEndedBeforeAttach(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1")
	l, m, _ := openMade(t, &recorder.Options{PIDs: []int{p.PID}})
	l.tracer, l.waited, m.refused = m, true, errors.New("no such process")
	require.ErrorIs(t, l.add(p), m.refused, "it has not ended")
	end(t, p)
	require.ErrorIs(t, l.add(p), recorder.ErrEndedEarly)
	l.waited = false
	require.ErrorIs(t, l.add(p), process.ErrEnded)
}

// TestFindByName: a name means programs that use CUDA, by the program's name and by the command line, and says which they are.
func TestFindByName(t *testing.T) {
	t.Parallel()
	p, other := program(t, own("byname"), "libcuda.so.1"), program(t, own("byname"))
	l, m, seen := openMade(t, &recorder.Options{Name: named("byname"), Memory: "auto"})
	require.NoError(t, l.Start(t.Context()))
	require.Equal(t, []int{p.PID}, pidsOf(l.Arrived()))
	require.NotContains(t, m.calls, fmt.Sprint("add ", other.PID))
	require.Len(t, seen.notices, 1)
	require.Regexp(t, fmt.Sprintf(`^  pid %d .*%s -c `, p.PID, own("byname")), seen.notices[0])

	require.True(t, matches(regexp.MustCompile("read _ of a test$"), p), "arguments with a space between")
	require.False(t, matches(regexp.MustCompile("^of a test$"), p))

	l, m, _ = openMade(t, &recorder.Options{PIDs: []int{p.PID}, Name: named("byname"), Memory: "auto"})
	require.NoError(t, l.Start(t.Context()))
	require.Equal(t, []string{"ready", fmt.Sprint("add ", p.PID)}, m.calls, "once, though it is meant twice")
}

// TestFindWaiting: with --wait and with --children a name means what uses no CUDA so far as well.
func TestFindWaiting(t *testing.T) {
	t.Parallel()
	p := program(t, own("waits"))
	for _, o := range []*recorder.Options{{Wait: true}, {Children: true}} {
		o.Name, o.Memory = named("waits"), "auto"
		l, m, seen := openMade(t, o)
		require.NoError(t, l.Start(t.Context()))
		require.Equal(t, []string{"ready", fmt.Sprint("add ", p.PID), fmt.Sprint("expect ", p.PID)}, m.calls)
		require.Equal(t, "  following 1 process with nothing to trace so far", seen.notices[len(seen.notices)-1])
	}
}

// TestFindNone: no process is an error, or is waited for.
func TestFindNone(t *testing.T) {
	t.Parallel()
	none := regexp.MustCompile("^no such program$")
	l, m, _ := openMade(t, &recorder.Options{Name: none, Memory: "auto"})
	require.ErrorIs(t, l.Start(t.Context()), recorder.ErrNoProcess)
	require.NotContains(t, m.calls, "await")

	l, m, seen := openMade(t, &recorder.Options{Name: none, Wait: true, Memory: "auto"})
	require.NoError(t, l.Start(t.Context()))
	require.Contains(t, m.calls, "await")
	require.Equal(t, []string{"  waiting for a process"}, seen.notices)
}

// TestFoundRefused: one of several that were found cannot be attached to: the others are, and it is a warning. When
// none can, it is the error.
func TestFoundRefused(t *testing.T) {
	t.Parallel()
	p := program(t, own("refused"), "libcuda.so.1")
	l, m, seen := openMade(t, &recorder.Options{Name: named("refused"), Memory: "auto"})
	m.refused = errors.New("no")
	require.ErrorIs(t, l.Start(t.Context()), m.refused)
	require.Len(t, seen.warnings, 1)

	waits := program(t, "cpuprogram")
	l, m, seen = openMade(t, &recorder.Options{PIDs: []int{p.PID, waits.PID}, Name: named("refused"), Memory: "auto"})
	require.NoError(t, l.Start(t.Context()))
	require.Equal(t, []int{p.PID}, pidsOf(l.Arrived()))
	require.Len(t, seen.warnings, 1)
	require.ErrorIs(t, seen.warnings[0], tracer.ErrNoCUDA)
	require.Contains(t, m.calls, fmt.Sprint("add ", waits.PID))
}

// scanned are the PIDs of what a look found, of those that are asked about.
func scanned(t *testing.T, s *search, of ...*process.Process) []int {
	t.Helper()
	found, err := s.scan()
	require.NoError(t, err)
	var out []int
	for _, p := range found {
		if slices.ContainsFunc(of, func(q *process.Process) bool { return q.PID == p.PID }) {
			out = append(out, p.PID)
		}
	}
	return out
}

// TestScan: a look finds each process once, again only when it has loaded code; a process that has begun since the first look is found
// by its name even without CUDA, and one without CUDA that was there before is not.
func TestScan(t *testing.T) {
	t.Parallel()
	before, cpu := program(t, own("scan"), "libcuda.so.1"), program(t, own("scan"))
	s := newSearch(&recorder.Options{Name: named("scan")})
	require.Equal(t, []int{before.PID}, scanned(t, s, before, cpu))
	require.Greater(t, time.Until(s.next), searchEvery/2, "not again at once")
	require.Empty(t, scanned(t, s, before, cpu), "nothing has changed")
	later := program(t, own("scan"))
	require.Equal(t, []int{later.PID}, scanned(t, s, before, cpu, later))
	require.Empty(t, scanned(t, s, before, cpu, later))

	was := s.seen[cpu.PID]
	s.seen[cpu.PID] = seenProcess{pages: was.pages - 1, begun: was.begun} // as if it had loaded code since
	require.Empty(t, scanned(t, s, cpu), "no CUDA")
	was = s.seen[later.PID]
	s.seen[later.PID] = seenProcess{pages: was.pages - 1, begun: was.begun}
	require.Equal(t, []int{later.PID}, scanned(t, s, later), "it still counts as begun")

	wants := false
	chosen := newSearch(&recorder.Options{All: true, Select: func(*process.Process) bool { return wants }})
	require.Empty(t, scanned(t, chosen, before), "not wanted")
	wants = true
	require.Equal(t, []int{before.PID}, scanned(t, chosen, before), "wanted since")
	require.Empty(t, scanned(t, chosen, before))

	all := newSearch(&recorder.Options{All: true})
	require.Equal(t, []int{before.PID}, scanned(t, all, before, cpu, later), "with --all, what uses CUDA")
	require.Nil(t, newSearch(&recorder.Options{PIDs: []int{1}}))
}

// TestSearchAgain: processes that come later are attached to when their tables are made, and followed when there is
// nothing to trace yet; each once.
func TestSearchAgain(t *testing.T) {
	t.Parallel()
	l, m, seen := openMade(t, &recorder.Options{Name: named("later"), Wait: true, Memory: "auto", CacheDir: t.TempDir()})
	require.NoError(t, l.Start(t.Context()))
	cpu := program(t, own("later"))
	l.searchAgain()
	require.NotContains(t, m.calls, fmt.Sprint("add ", cpu.PID), "it is not time to look again")
	l.search.next = time.Now()
	l.searchAgain()
	require.Contains(t, m.calls, fmt.Sprint("expect ", cpu.PID))

	gpu := program(t, own("later"), "libcuda.so.1")
	l.search.next = time.Now()
	l.searchAgain()
	require.True(t, l.search.preparing[gpu.PID], "its tables are made beside the reading of events")
	require.Eventually(t, func() bool { l.searchAgain(); return m.known[gpu.PID] }, time.Minute, time.Millisecond)
	require.False(t, l.search.preparing[gpu.PID])
	require.Equal(t, []int{gpu.PID}, pidsOf(l.Arrived()))
	require.Len(t, seen.notices, 3)
	require.Regexp(t, fmt.Sprintf("^  pid %d ", cpu.PID), seen.notices[1])
	require.Regexp(t, fmt.Sprintf("^  pid %d ", gpu.PID), seen.notices[2])

	calls := len(m.calls)
	l.addFound(gpu)
	require.Len(t, m.calls, calls, "it is known")
}

// TestRefusedOnce: one that cannot be attached to is said once, and not at all when it has ended meanwhile.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	p := program(t, own("later"), "libcuda.so.1")
	l, m, seen := openMade(t, &recorder.Options{All: true})
	l.tracer, l.search, m.refused = m, newSearch(l.options), errors.New("no")
	l.addFound(p)
	l.addFound(p)
	require.Len(t, seen.warnings, 1)
	var attach *recorder.AttachError
	require.ErrorAs(t, seen.warnings[0], &attach)
	require.Equal(t, p.PID, attach.PID)
	require.Empty(t, seen.notices)
	delete(l.search.failed, p.PID)
	end(t, p)
	l.addFound(p)
	require.Len(t, seen.warnings, 1)
}

// TestPrepareEnds: nobody waits for a recording that is over.
func TestPrepareEnds(t *testing.T) {
	t.Parallel()
	p := program(t, "cpuprogram")
	s := newSearch(&recorder.Options{All: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.prepare(ctx, p) // nobody takes it
	s.slot <- struct{}{}
	s.prepare(ctx, p) // another one is at work
}
