// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// readsOfRace is how often a job is read while it runs. GPUTRACE_WHO_READS sets another number.
const readsOfRace = 12

// lastingOfRace is how many blocks live as long as the job: its parameters and the optimizer's state.
const lastingOfRace = 24

// span is a time in which a name was right for an address, CLOCK_BOOTTIME nanoseconds.
type span struct{ from, to uint64 }

// truth is what testdata/workloads/who_race.py wrote down: for each name and address, when it was right.
type truth map[string]map[uint64][]span

// readTruth reads the log. Its writer has ended.
func readTruth(t *testing.T, dir string) truth {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "names"))
	require.NoError(t, err)
	names := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	b, err = os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	out := truth{}
	for _, n := range names {
		out[n] = map[uint64][]span{}
	}
	for ; len(b) >= 24; b = b[24:] {
		at, number, address := binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:])), binary.LittleEndian.Uint64(b[16:])
		spans := out[names[max(number, -number)-1]]
		if number > 0 {
			spans[address] = append(spans[address], span{at, 1<<64 - 1})
		} else if n := len(spans[address]); n > 0 {
			spans[address][n-1].to = at
		}
	}
	return out
}

// within is the model as it is called in its own method, while that runs.
const within = "Model.forward() local self"

// right says whether a name was right for an address at some moment of a time.
func (w truth) right(name string, address, from, to uint64) bool {
	if strings.Contains(name, within) {
		return w.right(strings.ReplaceAll(name, within, "model"), address, from, to) && w.right("forward", 0, from, to)
	}
	for _, s := range w[name][address] {
		if s.from <= to && s.to >= from {
			return true
		}
	}
	return false
}

// around says which spans of a name are nearest to a moment, for a failure's sake.
func (w truth) around(name string, address, at uint64) string {
	var out []string
	for a, spans := range w[name] {
		i, _ := slices.BinarySearchFunc(spans, at, func(s span, at uint64) int { return cmp.Compare(s.to, at) })
		for _, s := range spans[max(i-1, 0):min(i+2, len(spans))] {
			if a == address || s.from < at+1e8 && s.to+1e8 > at {
				out = append(out, fmt.Sprintf("%#x %+d to %+d", a, int64(s.from-at), int64(s.to-at)))
			}
		}
	}
	return strings.Join(out, ", ")
}

// spell writes a path as who_race.py does. own is false for a path that begins in a frame of a library.
func spell(path []whoStep) (name string, own bool) {
	var s strings.Builder
	own, dict := true, false
	for i := range path {
		step := &path[i]
		if step.Frame != nil && step.Frame.File != "" && filepath.Base(step.Frame.File) != "who_race.py" {
			own = false
		}
		writeStep(&s, step, dict)
		dict = step.Kind == "dict"
	}
	return strings.TrimPrefix(s.String(), "."), own
}

func writeStep(s *strings.Builder, step *whoStep, dict bool) {
	switch step.Kind {
	case "frame":
		s.WriteString(step.Frame.Function + "()")
	case "suspended":
		s.WriteString(" " + step.Frame.Function + "()")
	case "local":
		s.WriteString(" local " + step.Name)
	case "attribute":
		writeAttribute(s, step.Name)
	case "key":
		writeKey(s, step, dict)
	case "index":
		fmt.Fprintf(s, "[%d]", step.Index)
	case "grad", "grad_fn", "variable", "saved":
		s.WriteString("." + step.Kind)
	case "next":
		for _, n := range step.Indices {
			fmt.Fprintf(s, ".next[%d]", n)
		}
	case "module", "dict", "cell":
	default:
		s.WriteString(" <" + step.Kind + ">")
	}
}

func writeAttribute(s *strings.Builder, name string) {
	switch name {
	case "_modules", "_parameters", "_buffers":
		s.WriteString("\x00") // what follows is an attribute
	default:
		s.WriteString("." + name)
	}
}

func writeKey(s *strings.Builder, step *whoStep, dict bool) {
	text, part := strings.CutSuffix(s.String(), "\x00")
	switch {
	case part:
		s.Reset()
		s.WriteString(text)
		if _, err := strconv.Atoi(step.Name); err == nil {
			s.WriteString("[" + step.Name + "]")
			return
		}
		s.WriteString("." + step.Name)
	case dict:
		writeAttribute(s, step.Name)
	case step.KeyKind == "string":
		s.WriteString("['" + step.Name + "']")
	case step.KeyKind == "int":
		fmt.Fprintf(s, "[%d]", step.Index)
	default:
		key, _ := spell(step.KeyPath)
		s.WriteString("[" + key + "]")
	}
}

// TestWhoAtFullSpeed reads a job while it works, again and again. Every name that is stated was right when it was read: the
// job has written down from when to when each of them was.
func TestWhoAtFullSpeed(t *testing.T) {
	reads := readsOfRace
	if s := os.Getenv("GPUTRACE_WHO_READS"); s != "" {
		var err error
		reads, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.testdata, "run"), workload("who_race.py"), "--ask", dir).ready(t)
	var reports []*whoReport
	for range reads {
		stdout, stderr, code := who(t, p.pid, "--json", "--top", "0")
		require.Zero(t, code, stderr)
		reports = append(reports, parseWho(t, stdout))
	}
	p.touch(t, "stop")
	p.done(t)
	w := readTruth(t, dir)
	count := raceCount{why: map[string]int{}}
	for _, r := range reports {
		require.Zero(t, r.Cost.Stopped)
		count.judge(t, w, r)
	}
	t.Logf("%d reads; %+v", reads, count)
	for why, n := range count.why {
		t.Logf("%d without a name: %s", n, why)
	}
	require.Empty(t, count.wrong)
	require.GreaterOrEqual(t, count.right, lastingOfRace*len(reports), "what lasts is named in every read")
}

// raceCount counts the stated names.
type raceCount struct {
	right, library int
	why            map[string]int // of blocks without a name
	wrong          []string
}

func (c *raceCount) judge(t *testing.T, w truth, r *whoReport) {
	t.Helper()
	for i := range r.Blocks {
		b := &r.Blocks[i]
		if len(b.Path) == 0 {
			c.why[b.Category+", "+b.Class+b.Why]++
			continue
		}
		name, own := spell(b.Path)
		switch {
		case w.right(name, b.Address, r.BootTime, r.BootTime+r.Cost.Confirm):
			c.right++
		case !own: // a variable of PyTorch's own code, which the job cannot write down
			c.library++
		default:
			c.wrong = append(c.wrong, fmt.Sprintf("%q for %#x, read from %d to %d, right in %s", name, b.Address,
				r.BootTime, r.BootTime+r.Cost.Confirm, w.around(name, b.Address, r.BootTime)))
		}
	}
}

// TestWhoFreeze: a process is stopped only when that is asked for, and never longer, runs on afterwards, and also when gputrace is
// killed while it stands still.
func TestWhoFreeze(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.testdata, "run"), workload("who_race.py"), "--ask", dir).ready(t)
	for range 3 {
		stdout, stderr, code := who(t, p.pid, "--json", "--freeze", "5s")
		require.Zero(t, code, stderr)
		r := parseWho(t, stdout)
		require.Positive(t, r.Cost.Stopped)
		for i := range r.Blocks {
			require.NotContains(t, r.Blocks[i].Why, "held", "nothing moves in a process that stands still")
		}
		requireRunning(t, p)
	}
	for _, bound := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond} {
		var stopped []time.Duration
		for range 3 {
			stopped = append(stopped, time.Duration(whoJSON(t, p.pid, "--freeze", bound.String()).Cost.Stopped))
			requireRunning(t, p)
		}
		slices.Sort(stopped)
		// A machine that takes the processor from us for some milliseconds is not ours to beat: not one run decides.
		require.LessOrEqual(t, stopped[len(stopped)/2], bound, "%v", stopped)
	}
	for range 3 {
		c := newWho(p.pid, "--freeze", "10s")
		require.NoError(t, c.Start())
		eventually(t, "a stop", func() bool { return state(p.pid) == 'T' || state(c.Process.Pid) == 'Z' })
		require.NoError(t, c.Process.Signal(syscall.SIGKILL))
		_ = c.Wait() // it was killed
		eventually(t, "the process to run on", func() bool { return state(p.pid) != 'T' })
		requireRunning(t, p)
	}
}

// requireRunning waits until a job has made progress.
func requireRunning(t *testing.T, p *target) {
	t.Helper()
	size := func() int64 {
		st, err := os.Stat(filepath.Join(p.dir, "log"))
		require.NoError(t, err)
		return st.Size()
	}
	before := size()
	eventually(t, "the job to go on", func() bool { return size() > before })
}

// state is the third field of /proc/PID/stat: 'T' when it is stopped, 'Z' when it has ended.
func state(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	i := strings.LastIndexByte(string(b), ')')
	return b[i+2]
}
