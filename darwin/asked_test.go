// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
)

// started is a program that runs on the fake, whose events are read.
type started struct {
	*target
	folder string
}

// start starts a program, and returns once it has written the file ready.
func start(t *testing.T, python, program string, more ...string) *started {
	t.Helper()
	return startOn(t, buildFake(t), python, program, more...)
}

// startOn starts a program on a fake that is made already.
func startOn(t *testing.T, f *fake, python, program string, more ...string) *started {
	t.Helper()
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	j := &started{folder: t.TempDir()}
	o := &recorder.Options{Command: append([]string{python, program, j.folder}, more...), Observer: &noted{}, RingBytes: 1 << 20}
	s := Open(o, &Config{Library: library, Environ: []string{
		"LD_PRELOAD=" + f.dyld, "GPUTRACE_FAKE_LEDGER=" + f.ledger, "GPUTRACE_FAKE_TORCH=" + f.torch, "LD_LIBRARY_PATH=",
	}}).(*source)
	require.NoError(t, s.Start(t.Context()))
	j.follow(t, s)
	return j
}

// follow reads the events of a source, and returns once its program has written the file ready.
func (j *started) follow(t *testing.T, s *source) {
	t.Helper()
	over, arrived := make(chan struct{}), make(chan *target, 1)
	go func() {
		defer close(over)
		for buf := make([]event.Event, 0, 1024); ; buf = buf[:0] {
			if _, err := s.Read(buf); errors.Is(err, io.EOF) {
				return
			}
			for _, a := range s.Arrived() {
				arrived <- a.(*target)
			}
		}
	}()
	t.Cleanup(func() {
		s.Stop()
		<-over
		s.Signal(os.Kill)
		s.Wait()
		require.NoError(t, s.Close())
	})
	select {
	case j.target = <-arrived:
	case <-over:
		require.FailNow(t, "the program ended before it used the device")
	}
	j.await(t, "ready")
}

func (j *started) await(t *testing.T, name string) []byte {
	t.Helper()
	var b []byte
	require.Eventually(t, func() bool {
		var err error
		b, err = os.ReadFile(filepath.Join(j.folder, name))
		return err == nil
	}, time.Minute, 5*time.Millisecond, name)
	return b
}

// buffers are the addresses of the MTLBuffers of live blocks, by those that a report has.
func (j *started) buffers() map[uint64]uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[uint64]uint64{}
	for object, b := range j.decoder.blocks {
		out[b.addr] = object
	}
	return out
}

// TestHolders: each live block has a holder, and the interpreter itself says that it leads to the block's buffer.
func TestHolders(t *testing.T) {
	pythons := map[string]string{"3.14": ofDebian(t, "3.14"), "3.15": ofDebian(t, "3.15")}
	for _, version := range []string{"3.8", "3.9", "3.10", "3.11", "3.12", "3.13"} {
		pythons[version] = python(t, version)
	}
	for version, program := range pythons {
		t.Run(version, func(t *testing.T) {
			j := start(t, program, "testdata/mac/holders.py")
			report, err := j.holders(t.Context())
			require.NoError(t, err)
			require.Contains(t, report.Python, version)
			j.check(t, report)
		})
	}
}

// TestHoldersOfSharedNodes: the same where nodes are counted apart from themselves, as to PyTorch 2.14: what
// make_shared makes lies 24 bytes into its memory, and some nodes are larger than what malloc rounds to 16 bytes.
func TestHoldersOfSharedNodes(t *testing.T) {
	j := startOn(t, buildFake(t, "-DNODES_SHARED"), python(t, "3.11"), "testdata/mac/holders.py")
	report, err := j.holders(t.Context())
	require.NoError(t, err)
	j.check(t, report)
}

// TestWrongSizes: whatever malloc says of the sizes of objects, no name is wrong, and what does not depend on them is named.
func TestWrongSizes(t *testing.T) {
	f := buildFake(t)
	for _, wrong := range []string{"large", "zero", "random"} {
		t.Run(wrong, func(t *testing.T) {
			t.Setenv("GPUTRACE_FAKE_SIZES", wrong)
			j := startOn(t, f, python(t, "3.11"), "testdata/mac/holders.py")
			report, err := j.holders(t.Context())
			require.NoError(t, err)
			names, want, others := j.named(report)
			for _, name := range names {
				require.NotContains(t, name, "decoy.")
			}
			require.Subset(t, names, []string{"model.layers[3].weight", "leaf", "decoy", "losses[3]", "piece", "holders.py:194 train() local only"})
			require.Len(t, report.Blocks, len(names)+len(others))
			if wrong != "random" {
				require.Len(t, report.Notes, 1)
				require.Contains(t, report.Notes[0], "malloc does not say how large objects of C++ are")
			}
			j.judge(t, names, want)
		})
	}
}

// TestInjectedHolders: the same of a process that has loaded the library late, for the blocks that came since.
func TestInjectedHolders(t *testing.T) {
	f, j := buildFake(t), &started{folder: t.TempDir()}
	cmd := exec.Command(ofDebian(t, "3.14"), "testdata/mac/holders.py", j.folder, "late")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+f.dyld, "GPUTRACE_FAKE_TORCH="+f.torch, "LD_LIBRARY_PATH=")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	j.await(t, "waits")
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	o := &recorder.Options{PIDs: []int{cmd.Process.Pid}, Inject: true, Observer: &noted{}, RingBytes: 1 << 20}
	s := Open(o, &Config{Library: library, Python: cmd.Path}).(*source)
	require.NoError(t, s.Start(t.Context()))
	require.NoError(t, os.WriteFile(filepath.Join(j.folder, "begin"), nil, 0o600))
	j.follow(t, s)
	report, err := j.holders(t.Context())
	require.NoError(t, err)
	require.Contains(t, report.Python, "3.14")
	j.check(t, report)
}

// check wants a holder of each block but for two, by the interpreter.
func (j *started) check(t *testing.T, report *holders.Report) {
	t.Helper()
	names, want, others := j.named(report)
	t.Logf("%d blocks %+v", len(report.Blocks), report.Stats)
	require.Empty(t, report.Notes)
	require.ElementsMatch(t, []string{"held by C++ only", "unknown"}, others)
	require.Subset(t, names, []string{
		"model.layers[3].weight", "model.layers[3].weight.grad", "model.layers[6].bias", "model.layers[0].scale", "model.cache['keys'][1]",
		"model.cache[('a', 1)]", "history[1]['deep'][0]", "leaf", "decoy",
		"losses[3].grad_fn<SumBackward0> saved by MulBackward0", "picked.grad_fn saved by IndexBackward0[2]",
		"output.grad_fn saved by LstmMpsBackward0", "output.grad_fn saved by LstmMpsBackward0[3]", "extended.grad_fn saved by Extension",
		"piece", "piece._base.grad", "piece._base.grad_fn saved by MulBackward0", "coo.<SparseTensorImpl+208>",
		"holders.py:157 work() local private['x'][0]",
		"holders.py:194 train() local kept[39]", "holders.py:194 train() local holder.held", "holders.py:194 train() local only",
	})
	require.Len(t, report.Blocks, len(j.buffers()))
	checkCounts(t, report)
	j.judge(t, names, want) // the program goes on to its end
}

// checkCounts: all that holds a block was found, and nothing else. What is behind each object of C++ looks like a
// reference to the decoy. The base of a view is held by the view, and by the function that makes the base of it.
func checkCounts(t *testing.T, report *holders.Report) {
	t.Helper()
	complete := 0
	for i := range report.Blocks {
		b := &report.Blocks[i]
		switch name := b.Name(); {
		case name == "decoy":
			require.Equal(t, 1, b.Holders, name)
		case name == "leaf": // the variable, and in each of nine graphs a node, in six also what a multiplication saved
			require.Equal(t, 1+9+6, b.Holders, name)
		case strings.Contains(name, " saved by "):
			require.Equal(t, 1, b.Holders, name)
		case name == "piece":
			require.Len(t, b.Tensors, 2, name)
		}
		if b.Complete == holders.Yes {
			complete++
		}
	}
	require.Equal(t, len(report.Blocks)-2, complete)
}

// named are the names of the blocks that have a path, the buffers of these blocks, and the categories of the others.
func (j *started) named(report *holders.Report) (names []string, buffers []any, others []string) {
	of := j.buffers()
	for i := range report.Blocks {
		b := &report.Blocks[i]
		if len(b.Path) == 0 || !b.Confirmed {
			others = append(others, b.Category.String())
			continue
		}
		names, buffers = append(names, b.Name()), append(buffers, float64(of[b.Addr]))
	}
	return names, buffers, others
}

// judge has the interpreter follow names, each of which leads to a buffer.
func (j *started) judge(t *testing.T, names []string, want []any) {
	t.Helper()
	ask, err := json.Marshal(names)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(j.folder, "ask.new"), ask, 0o600))
	require.NoError(t, os.Rename(filepath.Join(j.folder, "ask.new"), filepath.Join(j.folder, "ask")))
	var have []any
	require.NoError(t, json.Unmarshal(j.await(t, "answer"), &have))
	for i := range names {
		require.Contains(t, have[i], want[i], names[i])
	}
}

// TestBusyHolders: a thread allocates and frees all the time; what stands still has its holders, and nothing has a wrong one.
func TestBusyHolders(t *testing.T) {
	const steady = 116
	j := start(t, python(t, "3.11"), "testdata/mac/holders.py", "busy")
	best := 0
	var names []string
	var want []any
	for range 10 {
		report, err := j.holders(t.Context())
		require.NoError(t, err)
		n, buffers, _ := j.named(report)
		for i := len(n) - 1; i >= 0; i-- {
			if strings.Contains(n[i], " churn() ") { // it is another one by now
				n, buffers = slices.Delete(n, i, i+1), slices.Delete(buffers, i, i+1)
			}
		}
		if len(n) > best {
			best, names, want = len(n), n, buffers
		}
		if best == steady {
			break
		}
	}
	require.Equal(t, steady, best)
	j.judge(t, names, want)
}

// TestAskedMemory: what the process answers is what Linux has of its memory; bad addresses are refused, and the process goes on.
func TestAskedMemory(t *testing.T) {
	j := start(t, python(t, "3.11"), "testdata/mac/holders.py")
	p, err := process.Open(j.PID())
	require.NoError(t, err)
	a, err := j.ring.Asker(t.Context())
	require.NoError(t, err)
	m := &asked{a, j.target, map[ring.Image]*image{}}

	maps, err := m.Maps()
	require.NoError(t, err)
	real, err := p.Maps()
	require.NoError(t, err)
	checkMaps(t, maps, real)
	compared := 0
	for i := range maps {
		b := make([]byte, min(maps[i].End-maps[i].Start, 3<<20))
		want := make([]byte, len(b))
		n, _ := p.ReadAt(want, maps[i].Start)
		got, _ := m.ReadAt(b, maps[i].Start)
		require.Equal(t, n, got, "%+v", maps[i])
		if !maps[i].Writable {
			require.True(t, bytes.Equal(want, b), "%+v", maps[i])
			compared += n
		}
	}
	require.Greater(t, compared, 10<<20)

	var edge uint64 // behind it nothing is mapped
	for i := range real[:len(real)-1] {
		if real[i].End < real[i+1].Start && real[i].Writable && !real[i].Shared && edge == 0 {
			edge = real[i].End
		}
	}
	b := make([]byte, 3*smallPage)
	n, err := m.ReadAt(b, edge-smallPage-24)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, smallPage+24, n)
	for _, addr := range []uint64{0, 8, 1 << 47, 1 << 63, ^uint64(0), ^uint64(0) - smallPage} {
		n, err := m.ReadAt(b, addr)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%#x", addr)
		require.Zero(t, n, "%#x", addr)
		_, err = m.Present(addr&^(smallPage-1), addr&^(smallPage-1)+smallPage)
		require.NoError(t, err)
	}
	there, _, err := m.ReadPages([]uint64{edge - smallPage, edge, 0}, b)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, false}, there)
	found, err := m.Interpreter()
	require.NoError(t, err)
	want, err := cpython.FindInterpreter(p)
	require.NoError(t, err)
	require.Equal(t, [2]uint64{want.Runtime, want.Type}, [2]uint64{found.Runtime, found.Type})
	require.Equal(t, want.Version, found.Version)
	none, err := m.Symbol("no such symbol")
	require.NoError(t, err)
	require.Zero(t, none)

	checkSizes(t, m, maps)
	j.checkSignals(t)
	report, err := j.holders(t.Context())
	require.NoError(t, err)
	j.check(t, report)
}

// checkSizes: what malloc did not give has no size, wherever it is, and no address ends the process; the words are those of the memory.
func checkSizes(t *testing.T, m *asked, maps []process.Mapping) {
	t.Helper()
	places := [][2]uint64{{0, 0}, {8, 8}, {1 << 47, 1 << 47}, {^uint64(0), ^uint64(0)}, {^uint64(0) - 15, ^uint64(0) - 15}}
	for i := range maps {
		for at := maps[i].Start; at < maps[i].End && len(places) < 70_000; at += max((maps[i].End-maps[i].Start)/256&^7, 8) {
			places = append(places, [2]uint64{at, at})
		}
	}
	answers, err := m.Sizes(places)
	require.NoError(t, err)
	require.Len(t, answers, len(places))
	sized, words := 0, 0
	for i, a := range answers {
		var b [8]byte
		if n, _ := m.ReadAt(b[:], places[i][0]); i < 400 && n == len(b) {
			require.Equal(t, binary.LittleEndian.Uint64(b[:]), a[0], "%#x", places[i][0])
			words++
		}
		if a[1] != 0 {
			require.Zero(t, places[i][1]%16)
			require.NotZero(t, places[i][1]%smallPage, "memory that begins with a page is not asked for")
			require.LessOrEqual(t, a[1], uint64(32<<10))
			sized++
		}
	}
	require.NotZero(t, words)
	require.Less(t, sized, 300)
	too, err := m.Asker.Sizes(nil)
	require.NoError(t, err)
	require.Empty(t, too)
}

// checkSignals: the one thread that answers takes no signal of the program's.
func (j *started) checkSignals(t *testing.T) {
	t.Helper()
	blocked := 0
	status, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", j.PID()))
	require.NoError(t, err)
	for _, path := range status {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.Contains(string(text), "SigBlk:\tfffffffe") || strings.Contains(string(text), "SigBlk:\tfffffffc") {
			blocked++
		}
	}
	require.Equal(t, 1, blocked)
}

// checkMaps: of all private memory that the process writes nothing is missing, and there is nothing that is not mapped.
func checkMaps(t *testing.T, maps, real []process.Mapping) {
	t.Helper()
	covered := func(list []process.Mapping, start, end uint64) bool {
		for i := range list {
			if list[i].Start <= start && start < list[i].End {
				start = min(list[i].End, end)
			}
		}
		return start == end
	}
	for i := range real {
		if r := &real[i]; r.Writable && !r.Shared && (r.Inode == 0 || strings.Contains(r.Path, ".so")) {
			require.True(t, covered(maps, r.Start, r.End), "%+v", r)
		}
	}
	for i := range maps {
		if m := &maps[i]; m.Inode == 0 {
			require.True(t, covered(real, m.Start, m.End), "%+v", m)
		}
		require.True(t, i == 0 || maps[i-1].End <= maps[i].Start, "%+v", maps[i])
	}
}

// TestAskedNoMore: a process that is stopped, and one that has ended, is not waited for.
func TestAskedNoMore(t *testing.T) {
	j := start(t, python(t, "3.11"), "testdata/mac/holders.py")
	require.NoError(t, syscall.Kill(j.PID(), syscall.SIGSTOP))
	begun := time.Now()
	_, err := j.holders(t.Context())
	require.ErrorIs(t, err, ring.ErrNoAnswer)
	require.Less(t, time.Since(begun), 5*time.Second)
	require.NoError(t, syscall.Kill(j.PID(), syscall.SIGCONT))
	report, err := j.holders(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, report.Blocks)
	require.NoError(t, syscall.Kill(j.PID(), syscall.SIGKILL))
	require.Eventually(t, func() bool { _, err = j.holders(t.Context()); return err != nil }, time.Minute, time.Millisecond)
}

// TestRecordedHolders: gputrace run names the holders in its report, and in the recording that was opened again.
func TestRecordedHolders(t *testing.T) {
	f, folder := buildFake(t), t.TempDir()
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "ask"), []byte("[]"), 0o600))
		(&started{folder: folder}).await(t, "answer")
	})
	results, n, o, err := record(t, f, func(o *recorder.Options) { o.Duration = 8 * time.Second }, python(t, "3.11"),
		"testdata/mac/holders.py", folder)
	require.NoError(t, err)
	traces := written(t, results, n, o, 1)
	in, err := export.Open(traces[0], nil)
	require.NoError(t, err)
	defer in.Close()
	input, err := in.Input(nil, "test", func(err error) { t.Error(err) })
	require.NoError(t, err)
	require.NotNil(t, input.End.Held)
	names := map[string]uint64{}
	for _, b := range input.End.Held.Blocks {
		names[b.Name] += b.Bytes
	}
	require.NotZero(t, names["model.layers[3].weight"])
	require.NotZero(t, names["holders.py:194 train() local kept[7]"])
	require.Contains(t, input.End.Held.Holders, "holders.py:194 train() local kept[0..39]")
}
