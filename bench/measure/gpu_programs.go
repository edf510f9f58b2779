// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// gpuPrograms are those of bench/gpu/programs.py whose own counters are compared with the recording's, in groups that run at once.
var gpuPrograms = [][]string{
	{"compiled", "graphs", "captured", "ddp"},
	{"fsdp", "managed", "cudamallocasync", "trains"},
	{"jax", "cupy"},
}

// gpuProgramLimit is how long a program may run.
const gpuProgramLimit = 100 * time.Second

// gpuRun is what became of a program under gputrace run.
type gpuRun struct {
	name, screen string
	truth, said  map[string]uint64 // by key of memory_stats
	events, lost uint64
	printed      string // what the program printed itself
	err          error
}

// compare runs each program under gputrace run and compares counters. The screens follow.
func (g *gpu) compare() error {
	g.write("Each program ran under `gputrace run`, up to four at once, and printed its framework's own counters at its end. Where they " +
		"are PyTorch's, each key that `gputrace summary` " +
		"has too is compared: requests and bytes asked for, the peaks of what is allocated and reserved.\n\n")
	g.inGroups(gpuPrograms, nil)
	return g.sharing()
}

// inGroups runs groups of programs one after the other, as far as there is time, and writes a row for each program and then their screens.
func (g *gpu) inGroups(groups [][]string, env []string) {
	table{{"program", "events, lost", "keys equal", "what differs: the program's, gputrace's"}}.printHead(g.out)
	var all []gpuRun
	for _, group := range groups {
		if g.left() < 30*time.Second {
			table{{strings.Join(group, ", "), "not run: no time was left"}}.printRows(g.out)
			continue
		}
		for _, r := range g.together(group, env) {
			table{r.row()}.printRows(g.out)
			all = append(all, r)
		}
	}
	g.write("\n")
	for i := range all {
		g.screen(&all[i])
	}
}

// together runs programs at once.
func (g *gpu) together(names, env []string) []gpuRun {
	out := make([]gpuRun, len(names))
	var wait sync.WaitGroup
	folders := make([]string, len(names))
	for i := range names {
		folders[i] = g.env.unique("recording")
	}
	for i, name := range names {
		wait.Go(func() { out[i] = g.run(name, folders[i], env) })
	}
	wait.Wait()
	return out
}

// run runs a program of programs.py under gputrace run.
func (g *gpu) run(name, folder string, env []string) gpuRun {
	out := gpuRun{name: name}
	ctx, cancel := context.WithTimeout(context.Background(), gpuProgramLimit)
	defer cancel()
	var printed, screen bytes.Buffer
	cmd := exec.CommandContext(ctx, g.env.gputrace, "run", "-o", folder, "-f", "none", "--cache-dir", g.env.cache, "--", g.options.Python,
		g.script("programs.py"), name)
	cmd.Env = append(append(os.Environ(), "COLUMNS=120", "PYTHONUNBUFFERED=1"), env...)
	cmd.Stdout, cmd.Stderr = &printed, &screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	out.printed, out.screen = printed.String(), screen.String()
	if out.truth, out.err = truthOf(out.printed); out.err != nil {
		out.err = errors.Join(err, out.err)
		return out
	}
	if out.events, out.lost, out.err = eventsOf(out.screen); out.err != nil {
		return out
	}
	out.said, out.err = g.summary(folder)
	return out
}

// summary is what gputrace summary prints of the recording's device with the most requests to PyTorch; empty without one.
func (g *gpu) summary(folder string) (map[string]uint64, error) {
	var s struct {
		Devices []struct {
			Stats map[string]uint64 `json:"memory_stats"`
		}
	}
	var best map[string]uint64
	files, _ := filepath.Glob(filepath.Join(folder, "trace.gputrace"))
	more, _ := filepath.Glob(filepath.Join(folder, "*", "trace.gputrace"))
	for _, file := range append(files, more...) {
		b, err := exec.Command(g.env.gputrace, "summary", file, "--json").Output()
		if err != nil {
			return nil, fmt.Errorf("summary of %s: %w", file, err)
		}
		if err := json.Unmarshal(b, &s); err != nil {
			return nil, fmt.Errorf("summary of %s: %w", file, err)
		}
		for _, d := range s.Devices {
			if d.Stats["allocation.all.allocated"] >= best["allocation.all.allocated"] {
				best = d.Stats
			}
		}
	}
	return best, nil
}

func (r *gpuRun) row() []string {
	if r.err != nil {
		return []string{r.name, "failed: " + strings.ReplaceAll(r.err.Error(), "\n", " ")}
	}
	equal, both, differ := 0, 0, []string{}
	for _, key := range slices.Sorted(maps.Keys(r.truth)) {
		said, ok := r.said[key]
		if !ok {
			continue
		}
		both++
		if said == r.truth[key] {
			equal++
			continue
		}
		differ = append(differ, fmt.Sprintf("%s %d, %d", key, r.truth[key], said))
	}
	keys := fmt.Sprintf("%d of %d", equal, both)
	if both == 0 {
		keys = "its own: " + strings.TrimSpace(lineOf(r.printed, "TRUTH"))
	}
	return []string{r.name, fmt.Sprintf("%d, %d", r.events, r.lost), keys, orDash(strings.Join(differ, "; "))}
}

// screen writes what a person saw of a program, without the lines of progress.
func (g *gpu) screen(r *gpuRun) {
	g.write("%s:\n\n```text\n%s\n```\n\n", r.name, strings.TrimSpace(finalScreen(r.screen)))
	if said := lineOf(r.printed, "TORCH"); said != "" {
		g.write("PyTorch said: %s\n\n", strings.TrimSpace(said))
	}
	if r.err != nil {
		said, _, _ := strings.Cut(r.screen, "\ngputrace  ")
		g.write("It failed: %v. It printed:\n\n```text\n%s\n%s\n```\n\n", r.err, strings.TrimSpace(lastLines(r.printed, 30)),
			strings.TrimSpace(lastLines(said, 30)))
	}
}

// finalScreen is the screen that a session ends with, or all where there is none.
func finalScreen(screen string) string {
	if at := strings.LastIndex(screen, "\ngputrace  "); at >= 0 {
		return screen[at:]
	}
	return lastLines(screen, 40)
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// lineOf is the rest of the line that begins with a word.
func lineOf(text, word string) string {
	for _, line := range strings.Split(text, "\n") {
		if rest, ok := strings.CutPrefix(line, word+" "); ok {
			return rest
		}
	}
	return ""
}

func truthOf(printed string) (map[string]uint64, error) {
	line := lineOf(printed, "TRUTH")
	if line == "" {
		return nil, fmt.Errorf("no TRUTH was printed: %s", lastLines(printed, 5))
	}
	var out map[string]uint64
	if err := json.Unmarshal([]byte(line), &out); err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	return out, nil
}

var eventsLine = regexp.MustCompile(`([0-9,]+) events · ([0-9,]+) events lost`)

// eventsOf reads how many events came and were lost from the screen that a session ends with.
func eventsOf(screen string) (events, lost uint64, err error) {
	m := eventsLine.FindAllStringSubmatch(screen, -1)
	if len(m) == 0 {
		return 0, 0, fmt.Errorf("no number of events in %q", lastLines(screen, 20))
	}
	for _, one := range m {
		n, err1 := strconv.ParseUint(strings.ReplaceAll(one[1], ",", ""), 10, 64)
		l, err2 := strconv.ParseUint(strings.ReplaceAll(one[2], ",", ""), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, 0, fmt.Errorf("%q: %w", one[0], err)
		}
		events, lost = events+n, lost+l
	}
	return events, lost, nil
}

// outOfMemory fills the device in three ways: alone by what is kept, alone by a batch, and beside a program that holds most of it.
func (g *gpu) outOfMemory() error {
	g.write("What the screen says, and PyTorch's own message.\n\n")
	var failed error
	for _, name := range []string{"keeps", "batch"} {
		r := g.run(name, g.env.unique("recording"), nil)
		g.screen(&r)
		failed = errors.Join(failed, r.err)
	}
	other := exec.Command(g.options.Python, g.script("programs.py"), "holds")
	other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	holds := newUntilWord("HOLDS")
	other.Stdout = holds
	if err := other.Start(); err != nil {
		return errors.Join(failed, err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	select {
	case <-holds.seen:
	case <-time.After(time.Minute):
		return errors.Join(failed, errors.New("the other program did not take its memory"))
	}
	g.write("Beside pid %d, which holds 60 %% of the device:\n\n", other.Process.Pid)
	r := g.run("keeps", g.env.unique("recording"), nil)
	g.screen(&r)
	return errors.Join(failed, r.err)
}

// sharing has two programs train beside each other through MPS, where the machine has its daemon.
func (g *gpu) sharing() error {
	daemon, err := exec.LookPath("nvidia-cuda-mps-control")
	if err != nil {
		g.write("Two programs through MPS: not run, there is no nvidia-cuda-mps-control.\n\n")
		return nil
	}
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + g.env.path("mps"), "CUDA_MPS_LOG_DIRECTORY=" + g.env.path("mps-log")}
	if err := errors.Join(os.MkdirAll(g.env.path("mps"), 0o755), os.MkdirAll(g.env.path("mps-log"), 0o755)); err != nil {
		return fmt.Errorf("make folders for MPS: %w", err)
	}
	start := exec.Command(daemon, "-d")
	start.Env = append(os.Environ(), env...)
	if b, err := start.CombinedOutput(); err != nil {
		g.write("Two programs through MPS: not run, its daemon did not start: %v %s\n\n", err, b)
		return nil
	}
	defer func() {
		quit := exec.Command(daemon)
		quit.Env, quit.Stdin = start.Env, strings.NewReader("quit\n")
		_ = quit.Run()
	}()
	g.write("Two programs at once through MPS:\n\n")
	g.inGroups([][]string{{"trains", "trains"}}, env)
	return nil
}

// threads measures the hot loop in many threads.
func (g *gpu) threads() error {
	o := g.options.Options
	o.Rounds, o.Threads = 2, []int{1, 4, 16, 64}
	results, err := measureCores(g.env, o)
	if len(results) > 0 {
		coresTimes(results, g.out)
	}
	return err
}
