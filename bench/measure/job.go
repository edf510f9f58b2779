// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
)

// sample is one step of a training script, or one call of a loop.
type sample struct {
	ns   float64 // how long it took
	cpu  float64 // CPU time of all threads in it, nanoseconds
	hits float64 // allocator events in it
}

// parser makes a sample of a line, if there is one in it.
type parser func(line []byte) (sample, bool, error)

// job is a running program that leaves its samples in a file. The file is read only after a window, so that the reading
// disturbs nothing.
type job struct {
	cmd    *exec.Cmd
	target *process.Process
	file   *os.File
	rest   []byte // of a line that is still being written
	parse  parser

	switchFile string // for PyTorch's recorder; empty: the program has none
}

// startTimeout is how long a program may take to its first sample; importing PyTorch takes seconds on a loaded machine.
const startTimeout = 2 * time.Minute

// startTraining starts a training script that runs until it is killed.
func startTraining(e *environment, script string) (*job, error) {
	counters, history := e.unique(script+".counters"), e.unique(script+".switch")
	run := filepath.Join(e.root, "testdata", "run")
	cmd := exec.Command(run, e.script(script), "--steps", "0", "--counters", counters, "--switch", history)
	j := &job{cmd: cmd, parse: new(stepParser).parse, switchFile: history}
	if err := j.turnRecorder("off"); err != nil {
		return nil, err
	}
	return j, j.start(counters)
}

// startLoop starts a program that prints lines of which parse makes samples.
func startLoop(e *environment, name string, parse parser, args ...string) (*job, error) {
	path := e.unique(name + ".batches")
	out, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("make the batch file: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout = out
	j := &job{cmd: cmd, parse: parse}
	return j, j.start(path)
}

// start runs the program and waits for its first samples.
func (j *job) start(samples string) error {
	if err := j.begin(); err != nil {
		return err
	}
	return j.await(samples)
}

// begin starts the program.
func (j *job) begin() error {
	j.cmd.Stderr = os.Stderr
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := j.cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// await waits for the program's first samples.
func (j *job) await(samples string) error {
	program, err := process.Open(j.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if j.file == nil {
			if j.file, _ = os.Open(samples); j.file == nil && !program.Alive() { // it may not be there yet
				return errors.New("the program ended before its first sample")
			}
			continue
		}
		got, err := j.drain()
		if err != nil {
			return err
		}
		if len(got) > 0 {
			return j.identify()
		}
	}
	return fmt.Errorf("no sample within %s", startTimeout)
}

func (j *job) identify() (err error) {
	j.target, err = process.Open(j.cmd.Process.Pid)
	return err
}

// stop kills the program.
func (j *job) stop() {
	if j.cmd.Process != nil {
		_ = j.cmd.Process.Kill()
		_ = j.cmd.Wait()
	}
	if j.file != nil {
		_ = j.file.Close()
	}
}

// drain takes the samples that came since the last call.
func (j *job) drain() ([]sample, error) {
	b, err := io.ReadAll(j.file)
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	lines := bytes.Split(append(j.rest, b...), []byte("\n"))
	j.rest = lines[len(lines)-1]
	var out []sample
	for _, line := range lines[:len(lines)-1] {
		s, ok, err := j.parse(line)
		if err != nil {
			return nil, fmt.Errorf("sample %q: %w", line, err)
		}
		if ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// minSamples are wanted of a window. Where the steps are long, it lasts up to maxStretch times as long for them.
const (
	minSamples = 12
	maxStretch = 8
)

// measure lets the job run for a window and returns the samples that lie wholly in it.
func (j *job) measure(window time.Duration) ([]sample, error) {
	time.Sleep(settle)
	if _, err := j.drain(); err != nil {
		return nil, err
	}
	begin, cpu, err := j.clocks()
	if err != nil {
		return nil, err
	}
	s, err := j.collect(window)
	if err != nil {
		return nil, err
	}
	end, cpuEnd, err := j.clocks()
	if err != nil {
		return nil, err
	}
	busy := float64(cpuEnd-cpu) / float64(end-begin)
	for i := range s {
		if s[i].cpu == 0 { // a loop, alike at all times: what it had of the window it had of each call
			s[i].cpu = s[i].ns * busy
		}
	}
	return s[1:], nil // the first began before the window
}

// collect takes the samples of a window.
func (j *job) collect(window time.Duration) ([]sample, error) {
	var out []sample
	for range maxStretch {
		time.Sleep(window)
		s, err := j.drain()
		if err != nil {
			return nil, err
		}
		if out = append(out, s...); len(out) >= minSamples {
			return out, nil
		}
	}
	return nil, fmt.Errorf("only %d samples in %s: give a longer -window", len(out), maxStretch*window)
}

// clocks reads the time, and the CPU time that all threads of the program have used, in nanoseconds.
func (j *job) clocks() (wall, cpu int64, err error) {
	const cpuClockScheduler = 2 // CPUCLOCK_SCHED of linux/posix-timers.h; the clock of a process is its inverted number << 3
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^j.target.PID<<3|cpuClockScheduler), &ts); err != nil {
		return 0, 0, fmt.Errorf("read the CPU time of pid %d: %w", j.target.PID, err)
	}
	return time.Since(processStart).Nanoseconds(), ts.Nano(), nil
}

// processStart is the zero of clocks.
var processStart = time.Now()

// stepParser turns the counters that a training script writes after each step into steps.
type stepParser struct {
	last counters
}

// counters is a line of testdata/workloads/sidecar.py, as far as it is needed.
type counters struct {
	Device   int     `json:"device"`
	Allocs   float64 `json:"num_alloc"`
	Frees    float64 `json:"num_free"`
	BootTime float64 `json:"boottime_ns"`
	CPU      float64 `json:"cpu_ns"`
}

func (p *stepParser) parse(line []byte) (sample, bool, error) {
	var c counters
	if err := json.Unmarshal(line, &c); err != nil {
		return sample{}, false, err
	}
	if c.Device != 0 {
		return sample{}, false, nil
	}
	last := p.last
	p.last = c
	hits := c.Allocs + c.Frees - last.Allocs - last.Frees
	return sample{ns: c.BootTime - last.BootTime, cpu: c.CPU - last.CPU, hits: hits}, last.BootTime > 0, nil
}

// parseBatch reads "batch N median_ns X mean_ns Y". The mean counts: allocations and frees, which cost differently, take
// turns.
func parseBatch(line []byte) (sample, bool, error) {
	f := strings.Fields(string(line))
	if len(f) != 6 || f[0] != "batch" || f[4] != "mean_ns" {
		return sample{}, false, nil
	}
	ns, err := strconv.ParseFloat(f[5], 64)
	return sample{ns: ns, hits: 1}, err == nil, err
}
