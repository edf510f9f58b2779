// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// GPUOptions say what is measured on a machine with a GPU, on which nothing is built and nothing installed.
type GPUOptions struct {
	Options
	Root     string        // of the repository: its scripts are run
	Python   string        // that has PyTorch
	Program  string        // gputrace
	Programs string        // folder of the C test programs
	Sections []string      // names of those wanted; nil: all
	Jobs     []string      // names of those whose steps are timed; nil: all
	Limit    time.Duration // nothing begins that would most likely not end in it
}

// RunGPU writes a page, section by section: each is written when it is known, so a run that is cut off leaves what it has. A section that
// fails says so on the page.
func RunGPU(o *GPUOptions, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("attaching needs root: run it with sudo")
	}
	g, err := newGPU(o, out)
	if err != nil {
		return err
	}
	defer g.close()
	g.write("%s\n\n", g.machine())
	var failed error
	for _, s := range gpuSections {
		if o.Sections != nil && !slices.Contains(o.Sections, s.name) {
			continue
		}
		g.write("## %s\n\n", s.title)
		if left := o.Limit - time.Since(g.started); left < s.needs {
			g.write("Not run: %.0f s were left of %.0f.\n\n", left.Seconds(), o.Limit.Seconds())
			continue
		}
		begin := time.Now()
		if err := s.run(g); err != nil {
			g.write("Failed: %v\n\n", err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
		}
		progress("%s: %.1f s", s.name, time.Since(begin).Seconds())
	}
	return failed
}

// gpuSections, the most worth knowing first.
var gpuSections = []struct {
	name, title string
	needs       time.Duration // what it takes at most, about
	run         func(*gpu) error
}{
	{"steps", "Time of a training step", 30 * time.Second, (*gpu).steps},
	{"programs", "What programs count themselves", 40 * time.Second, (*gpu).compare},
	{"oom", "Out of memory on the whole device", 20 * time.Second, (*gpu).outOfMemory},
	{"threads", "Many threads at once", 30 * time.Second, (*gpu).threads},
}

// gpu is a run.
type gpu struct {
	options *GPUOptions
	env     *environment
	out     io.Writer
	started time.Time
}

func newGPU(o *GPUOptions, out io.Writer) (*gpu, error) {
	g := &gpu{options: o, out: out, started: time.Now()}
	tmp, err := os.MkdirTemp("", "gputrace-gpu-")
	if err != nil {
		return nil, fmt.Errorf("make a working folder: %w", err)
	}
	g.env = &environment{root: o.Root, python: o.Python, programs: o.Programs, gputrace: o.Program, tmp: tmp,
		cache: filepath.Join(tmp, "cache")}
	return g, nil
}

func (g *gpu) close() { g.env.close() }

// left is the time in which something can begin.
func (g *gpu) left() time.Duration { return g.options.Limit - time.Since(g.started) }

func (g *gpu) write(format string, args ...any) { fmt.Fprintf(g.out, format, args...) }

// machine names the processor, the GPU and PyTorch.
func (g *gpu) machine() string {
	card, err := output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
	if err != nil {
		card = "no nvidia-smi"
	}
	torch, err := output(g.options.Python, "-c", "import sys, torch; print('PyTorch', torch.__version__, 'CPython', sys.version.split()[0])")
	if err != nil {
		torch = "no PyTorch"
	}
	return strings.Join([]string{card, torch, describeMachine()}, ", ")
}

// script is the path of a file beside the program's source.
func (g *gpu) script(name string) string { return filepath.Join(g.options.Root, "bench", "gpu", name) }

// gpuJobs are the loops of bench/gpu/jobs.py. The modes that need PyTorch's allocator are left out where it has another backend.
var gpuJobs = []struct {
	name, job, title string
	env              []string
	native           bool
}{
	{"gpt2-bf16", "gpt2-bf16", "GPT-2 124M, bf16, 8 × 1024 tokens", nil, true},
	{"mlp", "mlp", "MLP of three layers, 64 × 256: all launches", nil, true},
	{"gpt2-small", "gpt2-small", "GPT-2 124M, bf16, 1 × 64 tokens: all launches", nil, true},
	{"resnet50", "resnet50", "ResNet-50, bf16, 64 images", nil, true},
	{"trainer", "trainer", "Hugging Face Trainer, GPT-2 124M, bf16, 8 × 512", nil, true},
	{"gpt2-fp32", "gpt2-fp32", "GPT-2 124M, fp32, 4 × 512 tokens", nil, true},
	{"mlp-async", "mlp", "the MLP on cudaMallocAsync", []string{"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
		"PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"}, false},
}

// recordName is the mode in which the program itself is used, as a person does.
const recordName = "gputrace record"

// steps measures the loops one after the other. All are started at first and stand still until it is their turn.
func (g *gpu) steps() error {
	g.write("Mean time of a step in windows of %s, each against the untraced windows just before and after it in the same process: medians "+
		"of rounds, in parentheses the least and "+
		"the largest. `gputrace record` is the program with its default options, the empty uprobe a probe at the same place that does "+
		"nothing, the recorder PyTorch's own.\n\n",
		g.options.Window)
	var waiting []*gpuJob
	for i := range gpuJobs {
		if g.options.Jobs != nil && !slices.Contains(g.options.Jobs, gpuJobs[i].name) {
			continue
		}
		j := g.start(i)
		defer j.stop()
		waiting = append(waiting, j)
	}
	table{{"job", "untraced step, ms", "hits a step", "empty uprobe", recordName, recorderPython, recorderAll, "empty uprobe, µs a hit",
		"gputrace, µs a hit", "ns of a run, empty and gputrace's", "events, lost"}}.printHead(g.out)
	var failed error
	for _, j := range waiting {
		if left := g.left(); left < 30*time.Second {
			table{{j.title, fmt.Sprintf("not run: %.0f s left", left.Seconds())}}.printRows(g.out)
			continue
		}
		row, err := j.measureSteps()
		if err != nil {
			row = []string{j.title, "failed: " + strings.ReplaceAll(err.Error(), "\n", " ")}
			failed = errors.Join(failed, fmt.Errorf("%s: %w", j.title, err))
		}
		table{row}.printRows(g.out)
	}
	g.write("\n")
	for _, j := range waiting {
		if j.screen != "" {
			banner := lineOf(j.screen, "gputrace") // says how memory is read
			g.write("The last screen of %s:\n\n```text\ngputrace %s\n%s\n```\n\n", j.title, banner, strings.TrimSpace(finalScreen(j.screen)))
		}
	}
	return failed
}

// gpuJob is a loop that waits for its turn.
type gpuJob struct {
	*job
	*gpu
	title        string
	native       bool
	goes, counts string // files
	err          error  // of its start
	lost, events uint64 // of all its recordings
	screen       string // of the last one
}

func (g *gpu) start(i int) *gpuJob {
	spec := &gpuJobs[i]
	j := &gpuJob{gpu: g, title: spec.title, native: spec.native, goes: g.env.unique("go"), counts: g.env.unique("counters")}
	history := g.env.unique("switch")
	cmd := exec.Command(g.options.Python, g.script("jobs.py"), spec.job, "--go", j.goes, "--counters", j.counts, "--switch", history)
	cmd.Env = append(append(os.Environ(), "PYTHONPATH="+filepath.Join(g.options.Root, "testdata", "workloads")+":"+os.Getenv("PYTHONPATH")),
		spec.env...)
	j.job = &job{cmd: cmd, parse: new(stepParser).parse, switchFile: history}
	j.err = errors.Join(j.turnRecorder("off"), j.begin())
	return j
}

// measureSteps lets the loop go, measures it in all modes and ends it.
func (j *gpuJob) measureSteps() ([]string, error) {
	if j.err != nil {
		return nil, j.err
	}
	if err := os.WriteFile(j.goes, nil, 0o644); err != nil {
		return nil, fmt.Errorf("let it go: %w", err)
	}
	if err := j.await(j.counts); err != nil {
		return nil, err
	}
	s, err := newSubject(j.env, j.job)
	if err != nil {
		return nil, err
	}
	w := &workload{name: j.title, training: true, mean: true, modes: j.modes()}
	r := result{workload: w, found: s.found, probe: s.probe}
	for round := range j.options.Rounds {
		figures, err := s.round(w, j.options.Options, round)
		if err != nil {
			return nil, err
		}
		r.rounds = append(r.rounds, figures)
	}
	// By the kernel's clock the tracer of this process is measured: the kernel tells of the programs that a process holds itself.
	w.modes = modes[:3]
	if r.clocks, err = s.clockPrograms(w, j.options.Options); err != nil {
		return nil, err
	}
	j.stop()
	return j.row(&r), nil
}

func (j *gpuJob) row(r *result) []string {
	perRun := r.perRun()
	return []string{
		j.title, r.of(untraced, func(f figure) float64 { return f.ns / 1e6 }).text("%.2f"),
		fmt.Sprintf("%.0f", r.hits()),
		r.of(empty, slowdown).text("%.3f"), r.of(recordName, slowdown).text("%.3f"), r.of(recorderPython, slowdown).text("%.3f"),
		r.of(recorderAll, slowdown).text("%.3f"), price(r, empty), price(r, recordName),
		fmt.Sprintf("%.0f, %.0f", perRun[empty], perRun[traced]), fmt.Sprintf("%d, %d", j.events, j.lost),
	}
}

// price of a hit in µs, where the allocator counts its events.
func price(r *result, mode string) string {
	if r.hits() == 0 {
		return "-"
	}
	return r.of(mode, perHit).text("%.2f")
}

// modes of the loop: with another backend than PyTorch's own its recorder has nothing to record.
func (j *gpuJob) modes() []mode {
	out := []mode{modes[0], modes[1], {name: recordName, on: j.record}}
	for i := range modes {
		if name := modes[i].name; j.native && (name == recorderPython || name == recorderAll) {
			out = append(out, modes[i])
		}
	}
	return out
}

// record has the program itself record until the window is over.
func (j *gpuJob) record(*subject) (func() error, error) {
	session, err := startSession(j.env, j.job, j.env.cache, "-f", "none")
	if err != nil {
		return nil, err
	}
	return func() error {
		defer os.RemoveAll(session.folder)
		if err := session.stop(); err != nil {
			return err
		}
		j.screen = session.screen.String()
		events, lost, err := eventsOf(j.screen)
		j.events, j.lost = j.events+events, j.lost+lost
		return err
	}, nil
}
