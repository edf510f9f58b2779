// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// oomReport is the JSON of gputrace oom, as far as it is looked at.
type oomReport struct {
	OOMs      []oomCase `json:"ooms"`
	Recovered int       `json:"recovered"`
}

// oomCase is a failure of it.
type oomCase struct {
	PID        int     `json:"pid"`
	Step       *int    `json:"step"`
	Site       string  `json:"site"`
	Requested  uint64  `json:"requested_bytes"`
	Asked      *uint64 `json:"driver_asked_bytes"`
	Decision   string  `json:"decision"`
	Text       string  `json:"decision_text"`
	Caught     *bool   `json:"caught"`
	Allocated  uint64  `json:"allocated"`
	Reserved   uint64  `json:"reserved"`
	Inactive   *uint64 `json:"inactive_split"`
	DeviceFree *uint64 `json:"device_free"`
	Total      *uint64 `json:"device_total"`
	Others     *uint64 `json:"other_processes"`
	Limit      *uint64 `json:"limit"`
	LimitBelow *uint64 `json:"limit_below"`
	Top        []struct {
		Site  string `json:"site"`
		Bytes uint64 `json:"bytes"`
	} `json:"top"`
}

func readOOM(t *testing.T, path string) *oomReport {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	out := &oomReport{}
	require.NoError(t, json.Unmarshal(text, out))
	return out
}

// oomOf is what gputrace oom says of a recording, and its exit code.
func oomOf(t *testing.T, path string) (*oomReport, int) {
	t.Helper()
	cmd := exec.Command(env.binary, "oom", "--json", path)
	text, _ := cmd.Output() // the exit code is looked at
	out := &oomReport{}
	require.NoError(t, json.Unmarshal(text, out), "%s", text)
	return out, cmd.ProcessState.ExitCode()
}

// saidOOM is what PyTorch said of a failure: its message and its own counters.
type saidOOM struct {
	Message   string `json:"message"`
	Allocated uint64 `json:"allocated_bytes"`
	Reserved  uint64 `json:"reserved_bytes"`
	OOMs      uint64 `json:"num_ooms"`
	Retries   uint64 `json:"num_alloc_retries"`
}

func (s *saidOOM) mib(t *testing.T, pattern string) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern + ` ([0-9.]+) (bytes|KiB|MiB|GiB)`).FindStringSubmatch(s.Message)
	if m == nil {
		m = regexp.MustCompile(`([0-9.]+) (bytes|KiB|MiB|GiB) ` + pattern).FindStringSubmatch(s.Message)
	}
	require.NotNil(t, m, "%s in %s", pattern, s.Message)
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return v * map[string]float64{"bytes": 1.0 / (1 << 20), "KiB": 1.0 / 1024, "MiB": 1, "GiB": 1024}[m[2]]
}

// startOOM records a case of oom.py until the script ends.
func startOOM(t *testing.T, memory, name string, args ...string) (*command, *target) {
	t.Helper()
	c, p := startOOMIn(t, "OUT", memory, name, args...)
	p.release(t)
	return c, p
}

// startOOMIn is startOOM with another folder of results, and before the script begins.
func startOOMIn(t *testing.T, folder, memory, name string, args ...string) (*command, *target) {
	t.Helper()
	shm := "STANDIN_SHM=" + filepath.Join(t.TempDir(), "totals")
	p := startTrainingIn(t, []string{shm, "STANDIN_GPU_MEM=" + memory}, "oom.py", append([]string{"--case", name}, args...)...).ready(t)
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	c := newCommand(t, "record", "-p", itoa(p.pid), "-o", folder, "-f", "none")
	c.cmd.Env = append(c.cmd.Env, shm, "STANDIN_GPU_MEM="+memory, "LD_LIBRARY_PATH="+standin)
	c.start(t).ready(t)
	return c, p
}

// said is what PyTorch said of each failure.
func said(t *testing.T, p *target) []saidOOM {
	t.Helper()
	var out []saidOOM
	for _, line := range p.output() {
		if text, ok := strings.CutPrefix(line, "OOM "); ok {
			var s saidOOM
			require.NoError(t, json.Unmarshal([]byte(text), &s))
			out = append(out, s)
		}
	}
	return out
}

// TestOOMDecisions has a job run out of memory for one reason each: that is the decision, and its figures are those
// of PyTorch's own message and counters.
func TestOOMDecisions(t *testing.T) {
	for name, tt := range map[string]struct {
		memory, decision, text string
	}{
		"full":            {"2GiB", "full", "inputs"},
		"leak":            {"2GiB", "leak", "each step"},
		"fragmentation":   {"3GiB", "fragmentation", "in pieces"},
		"limit":           {"2GiB", "limit", "it did not ask the driver"},
		"other_process":   {"2GiB", "other_process", "other processes have"},
		"outside_pytorch": {"3GiB", "outside_pytorch", "beside PyTorch's allocator"},
		"private_pool":    {"2GiB", "private_pool", "in a MemPool"},
		"absurd_request":  {"2GiB", "absurd_request", "the device has 2.0 GiB"},
		"driver_error":    {"2GiB", "driver_error", "PyTorch did not report it"},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := startOOM(t, tt.memory, name, "--linger", "1")
			<-p.exited
			require.Zero(t, c.code(t), c.stderr.String())
			require.Contains(t, c.stdout.String(), "OUT OF MEMORY  pid "+itoa(p.pid))
			kept := filepath.Join(c.dir, "out.oom1")
			r, all := readOOM(t, filepath.Join(kept, "oom.json")), said(t, p)
			require.Len(t, r.OOMs, 1)
			require.Len(t, all, 1)
			o, s := &r.OOMs[0], &all[0]
			require.Equal(t, tt.decision, o.Decision, o.Text)
			require.Contains(t, o.Text, tt.text)
			requireSentence(t, name, o.Text)
			require.NotNil(t, o.Caught)
			require.False(t, *o.Caught)
			require.Equal(t, s.Reserved, o.Reserved, "of memory_stats()")
			require.LessOrEqual(t, s.Allocated, o.Allocated, "the exception has freed temporaries by then")
			switch tt.decision {
			case "driver_error": // PyTorch has no message
				require.Equal(t, s.Allocated, o.Allocated)
				return
			case "private_pool": // PyTorch's message counts what is free in private pools as allocated
				require.Equal(t, s.Allocated, o.Allocated)
			default:
				allocated := float64(o.Allocated) / (1 << 20)
				require.InDelta(t, s.mib(t, "is allocated by PyTorch"), allocated, 0.01+allocated/100, s.Message)
			}
			if tt.decision == "limit" {
				require.NotNil(t, o.Limit)
				require.Nil(t, o.LimitBelow, "it is exact")
				require.InDelta(t, s.mib(t, "allowed"), float64(*o.Limit)/(1<<20), 0.01, s.Message)
				require.EqualValues(t, (2<<30)/4, *o.Limit)
			}
			asked := float64(o.Requested) / (1 << 20)
			if o.Asked != nil {
				asked = float64(*o.Asked) / (1 << 20)
			}
			require.InDelta(t, s.mib(t, "Tried to allocate"), asked, asked/100, s.Message)
			require.NotNil(t, o.DeviceFree, o.Text)
			require.InDelta(t, s.mib(t, "of which"), float64(*o.DeviceFree)/(1<<20), 0.01+float64(*o.DeviceFree)/(1<<20)/100, s.Message)
		})
	}
}

// TestOOMEvaluationGraphs: losses are added up with their graphs. What is free in pieces by then would satisfy the
// request, and is not why the memory is full.
func TestOOMEvaluationGraphs(t *testing.T) {
	c, p := startOOM(t, "2GiB", "evaluation_graphs", "--linger", "3")
	<-p.exited
	require.Zero(t, c.code(t), c.stderr.String())
	r := readOOM(t, filepath.Join(c.dir, "out.oom1", "oom.json"))
	require.Len(t, r.OOMs, 1)
	o := &r.OOMs[0]
	require.Equal(t, "full", o.Decision, o.Text)
	require.Contains(t, o.Text, "Within this step oom.py:55 Net.forward has allocated ")
	require.Contains(t, o.Text, " graph keeps them: evaluate under torch.no_grad()")
}

// figure is what differs between runs and versions of PyTorch in a sentence.
var figure = regexp.MustCompile(`pid \d+|\d+(\.\d+)? ?(B|KiB|MiB|GiB|%)|\b\d+\b`)

// requireSentence compares a sentence with its row in docs/measured/oom.md, without the figures. The test prints the rows of that table.
func requireSentence(t *testing.T, decision, text string) {
	t.Helper()
	t.Logf("| `%s` | %s |", decision, text)
	if os.Getenv("TORCH_VERSION") != "" {
		return // another version than the table's can have other categories
	}
	doc, err := os.ReadFile("../docs/measured/oom.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| `" + decision + "` \\| (.*asked for.*|.*keeps.*) \\|$").FindSubmatch(doc)
	require.NotNil(t, row, "docs/measured/oom.md has no sentence of %s", decision)
	require.Equal(t, figure.ReplaceAllString(string(row[1]), "N"), figure.ReplaceAllString(text, "N"))
}

// TestOOMCaught: what the program survives is marked so, and is no finding; what returning the cache satisfied is no out of memory.
func TestOOMCaught(t *testing.T) {
	c, p := startOOM(t, "2GiB", "caught")
	eventually(t, "the end of the steps", func() bool { _, ok, _ := p.find("DONE"); return ok })
	p.touch(t, "hold")
	require.Zero(t, c.code(t), c.stderr.String())
	text, err := output(env.binary, "oom", "--json", c.out())
	require.NoError(t, err, "no finding")
	var r oomReport
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	require.Len(t, r.OOMs, len(said(t, p)))
	for i := range r.OOMs {
		require.True(t, *r.OOMs[i].Caught)
		s := said(t, p)[i] // its counters are of when the exception was caught
		allocated := float64(r.OOMs[i].Allocated) / (1 << 20)
		require.InDelta(t, s.mib(t, "is allocated by PyTorch"), allocated, allocated/100, s.Message)
	}

	c, p = startOOM(t, "2GiB", "recovered")
	eventually(t, "the end of the steps", func() bool { _, ok, _ := p.find("DONE"); return ok })
	p.touch(t, "hold")
	require.Zero(t, c.code(t), c.stderr.String())
	text, err = output(env.binary, "oom", "--json", c.out())
	require.NoError(t, err)
	r = oomReport{}
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	require.Empty(t, r.OOMs)
	require.Positive(t, r.Recovered)
	require.False(t, exists(filepath.Join(c.dir, "out.oom1")))
}

// oomKills is how often TestOOMKilled kills a job, unless GPUTRACE_OOM_KILLS says another number.
const oomKills = 3

// TestOOMKilled: a job that gets SIGKILL right after the failure leaves a complete folder, whose recording can be read.
func TestOOMKilled(t *testing.T) {
	n := oomKills
	if s := os.Getenv("GPUTRACE_OOM_KILLS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	complete := 0
	for i := range n {
		if t.Run(strconv.Itoa(i+1), killedAtOnce) {
			complete++
		}
	}
	t.Logf("%d of %d bundles are complete", complete, n)
}

// killedAtOnce plays a job that sends itself SIGKILL when its request has failed, and reads what is kept of it.
func killedAtOnce(t *testing.T) {
	c, p := startOOM(t, "2GiB", "limit", "--then", "kill")
	<-p.exited
	require.Zero(t, c.code(t), c.stderr.String())
	kept := filepath.Join(c.dir, "out.oom1")
	r := readOOM(t, filepath.Join(kept, "oom.json"))
	require.Len(t, r.OOMs, 1)
	require.Equal(t, "limit", r.OOMs[0].Decision)
	require.NotEmpty(t, r.OOMs[0].Top)
	require.Contains(t, r.OOMs[0].Site, "oom.py")
	text, err := os.ReadFile(filepath.Join(kept, "oom.txt"))
	require.NoError(t, err)
	require.Contains(t, string(text), "OUT OF MEMORY")
	_, err = output(env.binary, "report", filepath.Join(kept, "trace.gputrace"))
	require.NoError(t, err)
}

// TestOOMTracerKilled: what was recorded up to the failure can be read, whenever gputrace itself gets SIGKILL behind it.
func TestOOMTracerKilled(t *testing.T) {
	for _, later := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(later.String(), func(t *testing.T) {
			c, p := startOOM(t, "2GiB", "limit", "--then", "go-on", "--linger", "100")
			kept := filepath.Join(c.dir, "out.oom1")
			eventually(t, "the recording of the failure", func() bool { return exists(filepath.Join(kept, "trace.gputrace")) })
			time.Sleep(later)
			c.signal(t, syscall.SIGKILL)
			require.Equal(t, -1, c.code(t))
			p.await(t, "OOM")
			r, code := oomOf(t, kept)
			require.Equal(t, 3, code)
			require.Len(t, r.OOMs, 1)
			o, s := &r.OOMs[0], said(t, p)[0]
			require.Equal(t, "limit", o.Decision, o.Text)
			require.Nil(t, o.Caught, "that is not known")
			require.Equal(t, []uint64{s.Allocated, s.Reserved}, []uint64{o.Allocated, o.Reserved})
			require.NotEmpty(t, o.Top)
			for _, name := range []string{"oom.txt", "oom.json"} { // complete or not there
				if path := filepath.Join(kept, name); exists(path) {
					text, err := os.ReadFile(path)
					require.NoError(t, err)
					require.Contains(t, string(text), "oom.py")
				}
			}
		})
	}
}

// TestOOMDiskFull: where there is no room for the recording, gputrace says so, and that a request failed. Nothing
// stays that is not complete.
func TestOOMDiskFull(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	require.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	c, p := startOOMIn(t, filepath.Join(disk, "out"), "2GiB", "limit", "--linger", "1")
	require.Error(t, os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 2<<20), 0o644), "the disk must be full")
	p.release(t)
	<-p.exited
	require.Equal(t, 1, c.code(t))
	require.Contains(t, c.stderr.String(), "no space left")
	require.Contains(t, c.stdout.String(), "out of memory: a request was refused")
	require.NoFileExists(t, filepath.Join(disk, "out.oom1", "oom.txt"))
	require.NoFileExists(t, filepath.Join(disk, "out.oom1", "oom.json"))
}

// TestUntilOOM: the recording ends with the failure, while the job goes on.
func TestUntilOOM(t *testing.T) {
	shm := "STANDIN_SHM=" + filepath.Join(t.TempDir(), "totals")
	p := startTrainingIn(t, []string{shm, "STANDIN_GPU_MEM=2GiB"}, "oom.py", "--case", "limit", "--then", "go-on", "--linger", "100").ready(t)
	c := newCommand(t, "oom", "--until-oom", "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	require.Equal(t, 3, c.code(t), c.stderr.String())
	require.Contains(t, c.stdout.String(), "why      the program's own limit")
	require.True(t, exists(c.out()))
	select {
	case <-p.exited:
		t.Fatal("the job was still to run")
	default:
	}
}

// TestOOMExpandable: with expandable segments the decision and its figures are PyTorch's own too.
func TestOOMExpandable(t *testing.T) {
	name, settings, _ := strings.Cut(expandable, "=")
	for _, decision := range []string{"full", "leak", "limit", "other_process"} {
		t.Run(decision, func(t *testing.T) {
			t.Setenv(name, settings)
			c, p := startOOM(t, "3GiB", decision, "--linger", "1")
			<-p.exited
			require.Zero(t, c.code(t), c.stderr.String())
			require.False(t, exists(filepath.Join(c.dir, "out.oom2")), "one failure, however often it was asked for")
			r, all := readOOM(t, filepath.Join(c.dir, "out.oom1", "oom.json")), said(t, p)
			require.Len(t, r.OOMs, 1)
			require.Len(t, all, 1)
			require.Zero(t, r.Recovered, "nothing was given after a refusal")
			o, s := &r.OOMs[0], &all[0]
			require.Equal(t, decision, o.Decision, o.Text)
			require.NotNil(t, o.Caught)
			require.False(t, *o.Caught)
			require.Equal(t, s.Reserved, o.Reserved, "of memory_stats()")
			require.InEpsilon(t, s.mib(t, "is allocated by PyTorch"), float64(o.Allocated)/(1<<20), 0.01, s.Message)
			require.InEpsilon(t, s.mib(t, "Tried to allocate"), float64(segmentOf(o.Requested))/(1<<20), 0.01, s.Message)
			require.NotNil(t, o.DeviceFree, o.Text)
			require.InEpsilon(t, s.mib(t, "of which"), float64(*o.DeviceFree)/(1<<20), 0.01, s.Message)
		})
	}
}

// TestOOMAsync: with the backend cudaMallocAsync, which reports nothing, the decision and its figures are PyTorch's own too.
func TestOOMAsync(t *testing.T) {
	name, settings, _ := strings.Cut(asyncOnly, "=")
	for _, decision := range []string{"leak", "other_process", "outside_pytorch", "driver_error"} {
		t.Run(decision, func(t *testing.T) {
			t.Setenv(name, settings)
			c, p := startOOM(t, "3GiB", decision, "--linger", "1")
			<-p.exited
			require.Zero(t, c.code(t), c.stderr.String())
			require.False(t, exists(filepath.Join(c.dir, "out.oom2")), "one failure, however often it was asked for")
			r, all := readOOM(t, filepath.Join(c.dir, "out.oom1", "oom.json")), said(t, p)
			require.Len(t, r.OOMs, 1)
			require.Len(t, all, 1)
			require.Zero(t, r.Recovered, "nothing was given after a refusal")
			o := &r.OOMs[0]
			require.Equal(t, decision, o.Decision, o.Text)
			require.NotNil(t, o.Caught)
			require.False(t, *o.Caught)
			requireAsync(t, o, &all[0])
		})
	}
}

// requireAsync compares a failure with the message of the backend cudaMallocAsync; an extension's has none.
func requireAsync(t *testing.T, o *oomCase, s *saidOOM) {
	t.Helper()
	require.Zero(t, o.Reserved, "what the driver's pool has is not seen")
	require.NotEmpty(t, o.Top)
	require.NotNil(t, o.Step)
	if o.Decision == "driver_error" {
		return
	}
	require.InEpsilon(t, s.mib(t, "Currently allocated *:"), float64(o.Allocated)/(1<<20), 0.01, s.Message)
	require.InEpsilon(t, s.mib(t, "Requested *:"), float64(o.Requested)/(1<<20), 0.01, s.Message)
	require.NotNil(t, o.Total)
	require.InEpsilon(t, s.mib(t, "Device limit *:"), float64(*o.Total)/(1<<20), 0.01, s.Message)
	require.NotNil(t, o.DeviceFree, o.Text)
	require.InDelta(t, s.mib(t, `Free \(according to CUDA\):`), float64(*o.DeviceFree)/(1<<20), 6, s.Message) // it says hundredths of a GiB
}

// TestOOMWorker: a worker of a DataLoader fails while its parent is recorded. The failure is found in the job, with
// its process and line, also where only the parent was named.
func TestOOMWorker(t *testing.T) {
	p := startTrainingIn(t, []string{"STANDIN_GPU_MEM=2GiB"}, "oom.py", "--case", "worker").ready(t)
	c := newCommand(t, "record", "-p", itoa(p.pid), "--children", "-o", "OUT", "-f", "none").start(t).ready(t)
	p.release(t)
	<-p.exited
	require.Zero(t, c.code(t), c.stderr.String())
	require.Contains(t, said(t, p)[0].Message, "in DataLoader worker process 0")
	r, _ := oomOf(t, c.out())
	require.Len(t, r.OOMs, 1)
	o := &r.OOMs[0]
	require.NotEqual(t, p.pid, o.PID)
	require.Contains(t, o.Site, "oom.py:")
	require.Contains(t, o.Site, "Items.__getitem__")
	require.EqualValues(t, 8<<30, o.Requested)
	require.Regexp(t, `OUT OF MEMORY +pid `+itoa(o.PID)+` cuda:0 at `, c.stdout.String())
	text, err := output(env.binary, "oom", c.out())
	require.NoError(t, err)
	require.Regexp(t, `OUT OF MEMORY +pid `+itoa(o.PID)+` .* at `, text)
	require.Equal(t, 1, strings.Count(text, "OUT OF MEMORY"), text)
	text, err = output(env.binary, "oom", "--json", filepath.Join(c.dir, "out.pid"+itoa(o.PID)+".oom1"))
	require.NoError(t, err, "the worker has caught it, and its parent raises it")
	require.Contains(t, text, `"pid": `+itoa(o.PID))
}
