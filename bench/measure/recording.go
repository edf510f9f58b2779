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
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recording"
)

// recordingName selects this measurement on the command line.
const recordingName = "recording"

const (
	recordFor    = 10 * time.Second
	recordEvents = 10_000_000 // in the long recording: the trace over and over
)

// recordingResult is the recording of one training script.
type recordingResult struct {
	script string
	events int
	bytes  float64 // of the file an event, names and checkpoints included
	write  series  // CPU ns an event
	open   series  // CPU seconds of gputrace report on the long recording
	memory series  // MiB, largest resident size of it

	pageTime series // CPU seconds of gputrace export -f html on the long recording
	pageSize series // MB
	picture  series // milliseconds until Chromium shows the page's curve; empty: there is no Chromium
}

// measureRecording records every training script, writes what was recorded again, and reports it.
func measureRecording(e *environment, o Options) ([]recordingResult, error) {
	var out []recordingResult
	for i := range workloads {
		if !workloads[i].training {
			continue
		}
		r, err := measureTrace(e, o, workloads[i].name)
		if err != nil {
			return out, fmt.Errorf("recording, %s: %w", workloads[i].name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func measureTrace(e *environment, o Options, script string) (recordingResult, error) {
	out := recordingResult{script: script}
	progress("recording: %s", script)
	path, err := recordTrace(e, script)
	if err != nil {
		return out, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return out, fmt.Errorf("look at the recording: %w", err)
	}
	r, err := recording.Open(path)
	if err != nil {
		return out, err
	}
	defer r.Close()
	events, err := readEvents(r)
	if err != nil {
		return out, err
	}
	out.events, out.bytes = len(events), float64(st.Size())/float64(len(events))
	long := e.unique("long.gputrace")
	for round := range o.Rounds {
		progress("recording: %s, round %d of %d", script, round+1, o.Rounds)
		if err := out.writeLong(long, r, events); err != nil {
			return out, err
		}
		if err := out.report(e, long); err != nil {
			return out, err
		}
		if err := out.page(e, long); err != nil {
			return out, err
		}
	}
	return out, os.Remove(long)
}

// recordTrace has gputrace record a script.
func recordTrace(e *environment, script string) (string, error) {
	j, err := startTraining(e, script)
	defer func() {
		if j != nil {
			j.stop()
		}
	}()
	if err != nil {
		return "", err
	}
	folder := e.unique("recorded")
	cmd := exec.Command(e.gputrace, "record", "-p", strconv.Itoa(j.cmd.Process.Pid), "-d", recordFor.String(), "-o", folder, "--cache-dir",
		e.cache)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("gputrace record: %w\n%s", err, text)
	}
	return filepath.Join(folder, "trace.gputrace"), nil
}

func readEvents(r *recording.Reader) ([]event.Event, error) {
	var out []event.Event
	buf := make([]event.Event, 0, 8192)
	for {
		events, err := r.Read(buf)
		out = append(out, events...)
		r.Annotations() // those of the session: a writer costs what its events do
		if errors.Is(err, io.EOF) {
			if len(out) == 0 {
				return nil, errors.New("nothing was recorded")
			}
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
}

// writeLong writes the events over and over, with the clock going on, in batches as they come from the tracer.
func (out *recordingResult) writeLong(path string, r *recording.Reader, events []event.Event) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	stacks := map[event.StackID]*event.Stack{}
	for i := range events {
		if id := events[i].Stack; stacks[id] == nil {
			stacks[id] = r.Stack(id)
		}
	}
	w, err := recording.Create(path, r.Info(), func(id event.StackID) *event.Stack { return stacks[id] }, nil)
	if err != nil {
		return err
	}
	span := events[len(events)-1].Time - events[0].Time
	batch := make([]event.Event, 0, 4096)
	cpu := 0.0
	written := 0
	for shift := uint64(0); written < recordEvents; shift += span {
		for rest := events; len(rest) > 0 && written < recordEvents; rest = rest[len(batch):] {
			batch = append(batch[:0], rest[:min(len(rest), cap(batch), recordEvents-written)]...)
			for i := range batch {
				batch[i].Time += shift
			}
			begin := cpuTime()
			if err := w.Write(batch); err != nil {
				return err
			}
			cpu += cpuTime() - begin
			written += len(batch)
		}
	}
	out.write = append(out.write, cpu/float64(written)*1e9)
	return w.Close(&recording.End{Reason: recording.ReasonStopped})
}

// cpuTime is the CPU time of this process, seconds: what the collector of garbage does for a writer counts too.
func cpuTime() float64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // cannot fail with a known clock
	return float64(ts.Nano()) / 1e9
}

// report has gputrace open the long recording on one core.
func (out *recordingResult) report(e *environment, path string) error {
	cmd := exec.Command(e.gputrace, "report", path)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if err := forgetPeak(); err != nil {
		return err
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gputrace report: %w\n%s", err, text)
	}
	out.open = append(out.open, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	out.memory = append(out.memory, largest(cmd.ProcessState))
	return nil
}

func recordingTimes(results []recordingResult, w io.Writer) {
	fmt.Fprintf(w, "The recording, `trace.gputrace`: %s of each script, late attach. What was recorded is then written again and again to "+
		"%d M events, "+
		"and `gputrace report` opens that on one core. CPU times. The sizes are upper bounds: the kernel counts from what the bench itself "+
		"has. Goals: 10.5 B and 100 ns an event, 10 s, 500 MiB.\n\n", recordFor, recordEvents/1_000_000)
	t := table{{"script", "events recorded", "bytes an event, with all names", "to write an event, ns", "to report 10 M events, s",
		"events replayed a second, M", "largest resident size, MiB"}}
	for i := range results {
		r := &results[i]
		t.row(r.script+".py", fmt.Sprint(r.events), fmt.Sprintf("%.1f", r.bytes), r.write.text("%.0f"), r.open.text("%.1f"),
			fmt.Sprintf("%.1f", recordEvents/1e6/r.open.quantile(0.5)), r.memory.text("%.0f"))
	}
	t.print(w)
	fmt.Fprintf(w, "The page of the long recording, `gputrace export -f html`, on one core. Goals: below 5 MB, its first picture within "+
		"2,000 ms.\n\n")
	t = table{{"script", "CPU time to make it, s", "size, MB", "first picture in Chromium, ms"}}
	for i := range results {
		r := &results[i]
		t.row(r.script+".py", r.pageTime.text("%.1f"), r.pageSize.text("%.2f"), r.picture.text("%.0f"))
	}
	t.print(w)
}
