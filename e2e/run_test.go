// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// torchrun is the command line of a job on the stand-in.
func torchrun(ranks int, args ...string) []string {
	launcher := []string{filepath.Join(env.testdata, "run"), "-m", "torch.distributed.run", "--nproc-per-node", itoa(ranks),
		workload("ranks.py")}
	return append(launcher, args...)
}

// TestRunRanks starts jobs of several ranks with loader workers: what each rank says is allocated is what is known of it, to the byte,
// in the combined profile and in its own recording.
func TestRunRanks(t *testing.T) {
	for name, tt := range map[string]struct {
		ranks int
		by    []string // what starts gputrace
	}{
		"2 ranks": {ranks: 2}, "4 ranks": {ranks: 4},
		"2 ranks, and the tracer, in a PID namespace": {ranks: 2, by: []string{"unshare", "--pid", "--fork", "--mount-proc"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := tt.ranks
			c := newCommand(t, append([]string{"run", "-o", "OUT", "-f", "none", "--no-holders", "--"}, torchrun(ranks)...)...)
			c.cmd.Env = append(c.cmd.Env, "OMP_NUM_THREADS=1")
			if tt.by != nil {
				path, err := exec.LookPath(tt.by[0])
				require.NoError(t, err)
				c.cmd.Path, c.cmd.Args = path, append(slices.Clone(tt.by), c.cmd.Args...)
			}
			c.start(t).succeeds(t)
			checkRanks(t, c, ranks, c.stdout.String())
			require.Contains(t, c.stderr.String(), fmt.Sprintf("total of %d", ranks))
			require.Regexp(t, `(?m)^job      [0-9,]+ probe hits = [0-9,]+ emitted \+ [0-9,]+ without an event \+ 0 dropped\n\S`, c.stderr.String())
			require.NotContains(t, c.stderr.String(), "warning")
			require.NotContains(t, c.stdout.String(), "wrote", "standard output is the program's")
		})
	}
}

// TestChildrenOfLauncher attaches to the launcher of a job that runs already: its ranks are found.
func TestChildrenOfLauncher(t *testing.T) {
	dir := t.TempDir()
	args := torchrun(2, "--wait", "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold"))
	p := startIn(t, dir, nil, args[0], args[1:]...)
	eventually(t, "two ranks at their start signal", func() bool { return countLines(p.output(), "READY ") == 2 })
	one := strings.TrimPrefix(p.await(t, "READY "), "READY ") // named too, and not traced twice
	c := newCommand(t, "-p", itoa(p.pid)+","+one, "--children", "-o", "OUT", "-f", "none", "--no-holders").start(t).ready(t)
	p.release(t)
	eventually(t, "two ranks", func() bool { return countLines(p.output(), "RANK ") == 2 })
	p.touch(t, "hold")
	c.succeeds(t)
	checkRanks(t, c, 2, strings.Join(p.output(), "\n"))
	require.Contains(t, c.stdout.String(), "total of 2")
}

func countLines(lines []string, prefix string) (n int) {
	for _, l := range lines {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}

// checkRanks compares what the ranks printed with the results.
func checkRanks(t *testing.T, c *command, ranks int, printed string) {
	t.Helper()
	requireNoLeftovers(t, c.dir)
	want := map[string]int64{}
	names := []string{}
	for line := range strings.Lines(printed) {
		var rank, pid int
		var bytes int64
		if n, _ := fmt.Sscanf(line, "RANK %d %d %d", &rank, &pid, &bytes); n != 3 {
			continue
		}
		require.Positive(t, bytes)
		want[fmt.Sprintf("rank %d pid %d", rank, pid)] = bytes
		names = append(names, fmt.Sprintf("rank%d-pid%d", rank, pid))
	}
	require.Len(t, want, ranks, printed)
	whole := exec.Command(env.binary, "report", c.out())
	said, err := whole.CombinedOutput()
	require.NoError(t, err, string(said))
	require.NotContains(t, string(said), "missing")
	for line := range want {
		require.Contains(t, string(said), strings.Replace(line, " pid", ", pid", 1))
	}
	inuse, _ := readProfiles(t, c.out(), names...)
	require.Equal(t, want, byRank(t, inuse))
	for key, bytes := range want {
		folder := filepath.Join(c.out(), strings.ReplaceAll(strings.Replace(key, " pid ", "-pid", 1), " ", ""))
		own := readProfile(t, filepath.Join(folder, "inuse.pb.gz"))
		require.Equal(t, map[string]int64{key: bytes}, byRank(t, own))
		require.Zero(t, lived(own), "what lived before the first event")
		again := filepath.Join(t.TempDir(), "again.pb.gz")
		gputrace(t, "export", folder, "-f", "pprof", "-o", again)
		require.Equal(t, map[string]int64{key: bytes}, byRank(t, readProfile(t, again)))
	}
}

// byRank adds up the torch bytes in use by the labels of the process.
func byRank(t *testing.T, p *profile.Profile) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, s := range p.Sample {
		if s.Label["layer"][0] == "torch" {
			require.Len(t, s.Label["device"], 1)
			out[s.Label["rank"][0]+" "+s.Label["pid"][0]] += s.Value[len(s.Value)-1]
		}
	}
	return out
}

func lived(p *profile.Profile) int64 {
	bytes, _ := leaf(p, "before attach")
	return bytes
}

// TestRunLinked: the libraries that a program is linked with are hooked before it runs, so that one which allocates at once is covered
// too, and so are its children.
func TestRunLinked(t *testing.T) {
	c := newCommand(t, "run", "-o", "OUT", "-f", "none", "--no-holders", "--", filepath.Join(env.programs, "forks"), "--children",
		"5", "--calls", "1000").start(t)
	c.succeeds(t)
	var want []int64
	children := 0
	for line := range strings.Lines(c.stdout.String()) {
		var pid int
		var bytes int64
		if n, _ := fmt.Sscanf(line, "CHILD %d %d", &pid, &bytes); n == 2 {
			children++
		} else if n, _ := fmt.Sscanf(line, "DONE %d", &bytes); n != 1 {
			continue
		}
		want = append(want, bytes)
	}
	require.Equal(t, 5, children)
	by := map[string]int64{} // what was allocated since the process began, and is live: without what a child inherited from its parent
	for _, s := range readProfile(t, filepath.Join(c.out(), "alloc.pb.gz")).Sample {
		require.Equal(t, "torch", s.Label["layer"][0])
		by[s.Label["pid"][0]] += s.Value[len(s.Value)-1]
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Values(by)))
	require.Contains(t, c.stderr.String(), "total of 6")
	require.NotContains(t, c.stderr.String(), "warning")
}

// TestLinkedRuntime: of a program that has the runtime inside, and loads the driver with its first call, every allocation is seen.
func TestLinkedRuntime(t *testing.T) {
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	settings := []string{"LD_LIBRARY_PATH=" + standin}
	program := filepath.Join(env.programs, "linked")
	check := func(t *testing.T, c *command, done string) {
		t.Helper()
		var want int64
		_, err := fmt.Sscanf(done, "DONE %d", &want)
		require.NoError(t, err)
		got, functions := int64(0), map[string]bool{}
		for _, s := range readProfile(t, filepath.Join(c.out(), "alloc.pb.gz")).Sample {
			require.Equal(t, []string{"device"}, s.Label["layer"])
			got += s.Value[len(s.Value)-1]
			for _, l := range s.Location {
				functions[l.Line[0].Function.Name] = true
			}
		}
		require.Equal(t, want, got)
		for _, name := range []string{"cuMemAlloc_v2", "cudaMalloc", "allocate", "main"} {
			require.Contains(t, functions, name)
		}
	}
	t.Run("run", func(t *testing.T) {
		hold := filepath.Join(t.TempDir(), "hold")
		c := newCommand(t, "run", "-o", "OUT", "-f", "none", "--", program, "--calls", "1001", "--hold", hold)
		c.cmd.Env = append(c.cmd.Env, settings...)
		c.start(t)
		eventually(t, "the end of the calls", func() bool { return strings.Contains(c.stdout.String(), "DONE ") })
		eventually(t, "the first event", func() bool { return strings.Contains(c.stderr.String(), " functions hooked") })
		require.NoError(t, os.WriteFile(hold, nil, 0o644))
		c.succeeds(t)
		require.NotContains(t, c.stderr.String(), "warning")
		check(t, c, c.stdout.String())
	})
	t.Run("attach before", func(t *testing.T) {
		dir := t.TempDir()
		p := startIn(t, dir, settings, program, "--calls", "1001", "--go", filepath.Join(dir, "go"), "--loaded", filepath.Join(dir, "loaded"),
			"--hold", filepath.Join(dir, "hold")).ready(t)
		c := newCommand(t, "-p", itoa(p.pid), "--wait", "-o", "OUT", "-f", "none").start(t)
		eventually(t, "gputrace to wait", func() bool { return strings.Contains(c.stderr.String(), "waiting for pid") })
		p.release(t)
		p.await(t, "LOADED")
		c.ready(t)
		p.touch(t, "loaded")
		line := p.await(t, "DONE ")
		p.touch(t, "hold")
		c.succeeds(t)
		check(t, c, line)
	})
}

// TestRunRankOfEnded: processes that had ended before gputrace came to their first event are named by what was known of them.
func TestRunRankOfEnded(t *testing.T) {
	start := filepath.Join(t.TempDir(), "go")
	program := []string{filepath.Join(env.programs, "forks"), "--children", "2", "--go", start}
	c := newCommand(t, append([]string{"run", "-o", "OUT", "-f", "none", "--no-holders", "--"}, program...)...)
	c.cmd.Env = append(c.cmd.Env, "RANK=3", "WORLD_SIZE=8")
	c.start(t)
	eventually(t, "the first event", func() bool { return strings.Contains(c.stderr.String(), "rank 3, pid ") })
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, os.WriteFile(start, nil, 0o644))
	eventually(t, "the end of the program", func() bool { return strings.Contains(c.stdout.String(), "DONE ") })
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	c.succeeds(t)
	by := map[string]int{}
	for _, s := range readProfile(t, filepath.Join(c.out(), "alloc.pb.gz")).Sample {
		require.Equal(t, []string{"rank 3"}, s.Label["rank"], s.Label["pid"])
		by[s.Label["pid"][0]]++
	}
	require.Len(t, by, 3)
}

// TestRunPasses: standard input and output, the exit code and signals are the program's.
func TestRunPasses(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		code   int
		signal syscall.Signal
	}{
		"ends well":       {script: "cat", code: 0},
		"ends badly":      {script: "cat; exit 7", code: 7},
		"kills itself":    {script: "cat; kill -9 $$", code: 128 + 9},
		"gets a signal":   {script: "cat; echo started; trap 'exit 5' TERM; while :; do sleep 0.05; done", code: 5, signal: syscall.SIGTERM},
		"ends by signals": {script: "cat; echo started; exec sleep 1000", code: 128 + 15, signal: syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCommand(t, "run", "-o", "OUT", "--", "sh", "-c", tt.script)
			c.cmd.Stdin = strings.NewReader("from the input\n")
			c.start(t)
			want := "from the input\n"
			if tt.signal != 0 {
				want += "started\n"
				eventually(t, "the program", func() bool { return strings.HasSuffix(c.stdout.String(), "started\n") })
				c.signal(t, tt.signal)
			}
			require.Equal(t, tt.code, c.code(t), c.stderr.String())
			require.Equal(t, want, c.stdout.String())
			require.Contains(t, c.stderr.String(), "no process was seen to use CUDA")
			require.False(t, exists(c.out()))
		})
	}
	t.Run("is not there", func(t *testing.T) {
		c := newCommand(t, "run", "-o", "OUT", "--", "no-such-program").start(t)
		require.Equal(t, 127, c.code(t))
		require.Contains(t, c.stderr.String(), "no-such-program")
	})
}

// TestRunOutlives: a program that runs on after its recording is waited for, which is said, and gets the signals.
func TestRunOutlives(t *testing.T) {
	script := "trap 'exit 5' TERM; while :; do sleep 0.05; done"
	c := newCommand(t, "run", "-d", "100ms", "-o", "OUT", "--", "sh", "-c", script).start(t)
	eventually(t, "that it waits", func() bool {
		return strings.Contains(c.stderr.String(), "the recording has ended; waiting for the program's exit code")
	})
	c.signal(t, syscall.SIGTERM)
	require.Equal(t, 5, c.code(t), c.stderr.String())
}

// TestRunKilled: a program goes on when gputrace is killed.
func TestRunKilled(t *testing.T) {
	c := newCommand(t, "run", "-o", "OUT", "--", filepath.Join(env.programs, "forks"), "--children", "3", "--go",
		filepath.Join(t.TempDir(), "go"))
	c.start(t)
	eventually(t, "the program", func() bool { return strings.HasPrefix(c.stdout.String(), "READY ") })
	require.NoError(t, c.cmd.Process.Kill())
	require.NoError(t, os.WriteFile(c.cmd.Args[len(c.cmd.Args)-1], nil, 0o644))
	<-c.exited // and so the program: it has the other end of the output
	require.Contains(t, c.stdout.String(), "DONE ")
}

// TestAll attaches to every process that uses CUDA: in a PID namespace of its own, where there are only two.
func TestAll(t *testing.T) {
	dir := t.TempDir()
	c := newCommand(t, "--all", "-o", "OUT", "-f", "none", "--no-holders")
	script := `program=$1 dir=$2
shift 2
for i in 1 2; do "$program" --children "$i" --calls 10 --go "$dir/go" --hold "$dir/hold" & done
until [ "$(cat /proc/[0-9]*/maps | grep -c 'r-xp.*/libc10\.so')" = 2 ]; do sleep 0.01; done
"$@"`
	path, err := exec.LookPath("unshare")
	require.NoError(t, err)
	c.cmd.Path = path
	c.cmd.Args = append([]string{"unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh",
		filepath.Join(env.programs, "forks"), dir}, c.cmd.Args...)
	c.start(t).ready(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o644))
	eventually(t, "both programs", func() bool { return strings.Count(c.stdout.String(), "DONE ") == 2 })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hold"), nil, 0o644))
	c.succeeds(t)
	require.Contains(t, c.stdout.String(), "total of 2")
	by := map[string]int64{}
	for _, s := range readProfile(t, filepath.Join(c.out(), "alloc.pb.gz")).Sample {
		by[s.Label["pid"][0]] += s.Value[len(s.Value)-1]
	}
	require.ElementsMatch(t, []int64{1024, 2048}, slices.Collect(maps.Values(by)), "a block for each child; the children are not traced")
}

// TestNamed finds processes by an expression, and says which.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "wanted-by-name")
	require.NoError(t, os.Symlink(filepath.Join(env.programs, "forks"), program))
	var started []*target
	for range 2 {
		own := t.TempDir()
		p := startIn(t, own, []string{"LD_LIBRARY_PATH=" + env.programs}, program, "--children", "1", "--go", filepath.Join(own, "go"),
			"--hold", filepath.Join(own, "hold"))
		started = append(started, p.ready(t))
	}
	c := newCommand(t, "--name", "wanted-by-[n]ame", "-o", "OUT", "-f", "none", "--no-holders").start(t).ready(t)
	for _, p := range started {
		require.Contains(t, c.stderr.String(), fmt.Sprintf("pid %d wanted-by-name", p.pid))
		p.release(t)
		p.done(t)
		p.touch(t, "hold")
	}
	c.succeeds(t)
	require.Contains(t, c.stdout.String(), "total of 2")
	none := exec.Command(env.binary, "--name", "no-program-is-called-so")
	require.ErrorContains(t, none.Run(), "exit status 7")
}

// comesLater is a PyTorch that begins to be one at the start signal.
const comesLater = `# comes-later
import os, time
print('READY', os.getpid(), flush=True)
while not os.path.exists('DIR/go'): time.sleep(0.01)
import torch
kept = [torch.empty(1000 * n, device='cuda') for n in range(1, 100)][::2]
print('MADE', torch.cuda.memory_allocated(), torch.cuda.memory_stats()['allocation.all.allocated'], flush=True)
while not os.path.exists('DIR/found'): time.sleep(0.01)
kept.append(torch.empty(1000, device='cuda'))
print('DONE', torch.cuda.memory_allocated(), flush=True)
while not os.path.exists('DIR/hold'): time.sleep(0.01)
os._exit(0)`

// awaitFound waits until gputrace says that it has found a process.
func (c *command) awaitFound(t *testing.T, p *target) {
	t.Helper()
	eventually(t, "the process to be found", func() bool { return strings.Contains(c.stderr.String(), fmt.Sprintf("pid %d ", p.pid)) })
}

// TestNamedLater: nothing was there when gputrace began. A program that uses CUDA at once is attached to, a PyTorch is followed from
// before it loads CUDA, so that each of its allocations is seen. With the last of them the recording ends.
func TestNamedLater(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "comes-later")
	require.NoError(t, os.Symlink(filepath.Join(env.programs, "forks"), program))
	c := newCommand(t, "--name", "comes-[l]ater", "--wait", "-o", "OUT", "-f", "none", "--no-holders").start(t).ready(t)
	require.Contains(t, c.stderr.String(), "waiting for a process")
	first := startIn(t, dir, []string{"LD_LIBRARY_PATH=" + env.programs}, program, "--go", filepath.Join(dir, "go"), "--hold",
		filepath.Join(dir, "hold")).ready(t)
	c.awaitFound(t, first)
	second := startPython(t, comesLater).ready(t)
	c.awaitFound(t, second)
	first.release(t)
	first.done(t)
	first.touch(t, "hold")
	second.release(t)
	var live, made int64
	_, err := fmt.Sscanf(second.await(t, "MADE"), "MADE %d %d", &live, &made)
	require.NoError(t, err)
	second.touch(t, "found")
	line := second.await(t, "DONE")
	second.touch(t, "hold")
	c.succeeds(t)
	require.Contains(t, c.stdout.String(), "total of 2")
	require.NotContains(t, c.stderr.String(), "before its libraries were hooked")
	inuse, alloc := readProfiles(t, filepath.Join(c.out(), fmt.Sprintf("pid%d", second.pid)), "trace.gputrace")
	checkAllocated(t, inuse, line)
	require.Equal(t, made+1, sum(t, alloc, "alloc_objects", "torch"))
}

// TestLoadedLater: a process that is meant, but used no CUDA when gputrace began, is attached to when it does.
func TestLoadedLater(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "loads-later")
	require.NoError(t, os.Symlink(filepath.Join(env.programs, "forks"), program))
	first := startIn(t, dir, []string{"LD_LIBRARY_PATH=" + env.programs}, program, "--go", filepath.Join(dir, "go"), "--hold",
		filepath.Join(dir, "hold")).ready(t)
	second := startPython(t, strings.ReplaceAll(comesLater, "comes", "loads")).ready(t)
	c := newCommand(t, "--name", "loads-[l]ater", "-o", "OUT", "-f", "none", "--no-holders").start(t).ready(t)
	require.NotContains(t, c.stderr.String(), fmt.Sprintf("pid %d ", second.pid))
	second.release(t)
	second.await(t, "MADE")
	c.awaitFound(t, second)
	eventually(t, "it to be attached to", func() bool { return strings.Count(c.stderr.String(), fmt.Sprintf("pid %d ", second.pid)) >= 2 })
	second.touch(t, "found")
	line := second.await(t, "DONE")
	for _, p := range []*target{first, second} {
		p.touch(t, "go")
		p.touch(t, "hold")
	}
	c.succeeds(t)
	inuse, _ := readProfiles(t, filepath.Join(c.out(), fmt.Sprintf("pid%d", second.pid)), "trace.gputrace")
	checkAllocated(t, inuse, line)
}

// TestRunNative: of a program without Python and PyTorch nothing is called unknown, and its memory is on the one
// device of the machine from the first call on, which no call says.
func TestRunNative(t *testing.T) {
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	c := newCommand(t, "run", "-o", "OUT", "-f", "none", "-d", "4s", "--", filepath.Join(env.programs, "buffers"), "--keep")
	c.cmd.Env = append(c.cmd.Env, "LD_LIBRARY_PATH="+standin, "STANDIN_SHM="+filepath.Join(t.TempDir(), "totals"))
	c.start(t)
	eventually(t, "the end of the recording", func() bool { return strings.Contains(c.stderr.String(), "  wrote ") })
	said := c.stderr.String()
	require.Contains(t, said, " buffers --keep · no Python · no PyTorch · ")
	require.Regexp(t, `(?m) device memory \d.*  lost 0 events$`, said)
	first, _, _ := strings.Cut(said, "\n\n") // what -v prints is below
	require.NotContains(t, first, "unknown")
	require.NotContains(t, first, "allocator totals")
	devices := map[string]bool{}
	for _, s := range readProfile(t, filepath.Join(c.out(), "alloc.pb.gz")).Sample {
		devices[s.Label["device"][0]] = true
	}
	require.Equal(t, map[string]bool{"cuda:0": true}, devices)
}
