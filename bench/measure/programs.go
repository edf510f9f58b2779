// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// programTime is what the kernel itself measured of a BPF program, without the trap that leads to it.
type programTime struct {
	name string
	runs uint64
	time time.Duration
}

// clocked is what the kernel's clock says of the programs of one mode.
type clocked struct {
	mode     string
	programs []programTime
}

// perRun is the mean over all programs, nanoseconds.
func (c *clocked) perRun() float64 {
	var runs uint64
	var sum time.Duration
	for _, p := range c.programs {
		runs, sum = runs+p.runs, sum+p.time
	}
	return float64(sum.Nanoseconds()) / float64(max(runs, 1))
}

// clockPrograms runs the modes that have programs of ours once more with the kernel's clock on, which costs a little itself:
// the empty program shows how much.
func (s *subject) clockPrograms(w *workload, o Options) ([]clocked, error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("start the kernel's clock: %w", err)
	}
	defer stats.Close()
	var out []clocked
	list := w.compared()
	for i := range list {
		m := &list[i]
		if !m.ours || w.leavesOut(m) {
			continue
		}
		times, err := s.clockMode(m, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		out = append(out, clocked{m.name, times})
	}
	return out, nil
}

func (s *subject) clockMode(m *mode, o Options) ([]programTime, error) {
	off, err := m.on(s)
	if err != nil {
		return nil, err
	}
	_, err = s.job.measure(o.Window)
	times, err2 := ownProgramTimes()
	return times, errors.Join(err, err2, off())
}

// ownProgramTimes lists the programs that this process holds and that ran.
func ownProgramTimes() ([]programTime, error) {
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		return nil, fmt.Errorf("list our descriptors: %w", err)
	}
	var out []programTime
	seen := map[ebpf.ProgramID]bool{}
	for _, file := range files {
		id, ok := programOf(file)
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		t, err := readProgramTime(id)
		if err != nil {
			return nil, fmt.Errorf("read the run time of program %d: %w", id, err)
		}
		if t.runs > 0 {
			out = append(out, t)
		}
	}
	return out, nil
}

// programOf reads the "prog_id:" line of a descriptor's fdinfo, which programs and their links have.
func programOf(fdinfo string) (ebpf.ProgramID, bool) {
	b, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0, false // closed meanwhile
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "prog_id:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 32)
			return ebpf.ProgramID(n), err == nil
		}
	}
	return 0, false
}

func readProgramTime(id ebpf.ProgramID) (programTime, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return programTime{}, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return programTime{}, err
	}
	stats, err := p.Stats()
	if err != nil {
		return programTime{}, err
	}
	return programTime{name: info.Name, runs: stats.RunCount, time: stats.Runtime}, nil
}
