// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// attachResult is the gputrace program's own behaviour, of a training job.
type attachResult struct {
	cold, warm series // seconds from the command to the ready file
	coldBanner series // seconds, as the banner states them
	warmBanner series
	ending     series // seconds from Ctrl-C to the end, files written
	memory     series // MiB, largest resident size
	coldMemory series // the same
	own        series // MiB, anonymous memory before Ctrl-C
}

// attachScript is the script that is attached to.
const attachScript = "gpt"

// measureAttach starts gputrace on a training job again and again, with an empty cache of unwind tables and with a full
// one. The files themselves are in the page cache, as they are while a job runs.
func measureAttach(e *environment, o Options) (attachResult, error) {
	var out attachResult
	j, err := startTraining(e, attachScript)
	defer j.stop()
	if err != nil {
		return out, fmt.Errorf("attach: %w", err)
	}
	for round := range o.Rounds {
		progress("attach: round %d of %d", round+1, o.Rounds)
		cache := e.path(fmt.Sprintf("attach-cache.%d", round))
		cold, err := attachOnce(e, j, cache, 0)
		if err != nil {
			return out, fmt.Errorf("attach with an empty cache: %w", err)
		}
		warm, err := attachOnce(e, j, cache, o.Window)
		if err != nil {
			return out, fmt.Errorf("attach with a full cache: %w", err)
		}
		out.cold, out.coldBanner = append(out.cold, cold.ready), append(out.coldBanner, cold.banner)
		out.warm, out.warmBanner = append(out.warm, warm.ready), append(out.warmBanner, warm.banner)
		out.ending, out.own = append(out.ending, warm.ending), append(out.own, warm.own)
		out.coldMemory, out.memory = append(out.coldMemory, cold.memory), append(out.memory, warm.memory)
		_ = os.RemoveAll(cache)
	}
	return out, nil
}

// attachRun is one run of gputrace: seconds and MiB.
type attachRun struct {
	ready, banner, ending, memory, own float64
}

var bannerReady = regexp.MustCompile(`ready in ([0-9.]+) s`)

// session is the program recording a job, its probes live.
type session struct {
	cmd    *exec.Cmd
	screen bytes.Buffer
	folder string // of its results
}

// startSession starts the program on a job, and waits until its probes are live.
func startSession(e *environment, j *job, cache string, options ...string) (*session, error) {
	ready := e.unique("ready")
	defer os.Remove(ready)
	s := &session{folder: e.unique("profiles")}
	args := []string{"record", "-p", strconv.Itoa(j.target.PID), "-o", s.folder, "--ready-file", ready, "--cache-dir", cache}
	s.cmd = exec.Command(e.gputrace, append(args, options...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.screen, &s.screen
	s.cmd.Env = append(os.Environ(), "COLUMNS=120")
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start gputrace: %w", err)
	}
	if err := waitForFile(ready, time.Minute); err != nil {
		_ = s.cmd.Process.Kill()
		return nil, errors.Join(err, s.cmd.Wait(), errors.New(s.screen.String()))
	}
	return s, nil
}

// stop ends the session as Ctrl-C does, and waits until its files are written.
func (s *session) stop() error {
	_ = s.cmd.Process.Signal(os.Interrupt)
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("gputrace: %w\n%s", err, s.screen.String())
	}
	return nil
}

func attachOnce(e *environment, j *job, cache string, stay time.Duration) (attachRun, error) {
	begin := time.Now()
	s, err := startSession(e, j, cache)
	if err != nil {
		return attachRun{}, err
	}
	defer os.RemoveAll(s.folder)
	out := attachRun{ready: time.Since(begin).Seconds()}
	time.Sleep(stay)
	out.own, out.memory = resident(s.cmd.Process.Pid, "RssAnon:"), resident(s.cmd.Process.Pid, "VmHWM:")
	end := time.Now()
	err = s.stop()
	out.ending = time.Since(end).Seconds()
	if err != nil && stay > 0 { // without any event an interrupted run is no success
		return out, err
	}
	m := bannerReady.FindSubmatch(s.screen.Bytes())
	if m == nil {
		return out, fmt.Errorf("no banner in %q", s.screen.String())
	}
	out.banner, err = strconv.ParseFloat(string(m[1]), 64)
	return out, err
}

// resident is a size in /proc/PID/status, MiB: RssAnon, what no file is behind, or VmHWM, the most so far. (The ru_maxrss of
// wait4(2) would not do: it starts with the parent's.)
func resident(pid int, field string) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field {
			n, _ := strconv.ParseFloat(f[1], 64)
			return n / 1024
		}
	}
	return 0
}

func waitForFile(path string, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s did not appear within %s", path, timeout)
}
