// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package limits knows what gputrace itself may use: the limits of its process (getrlimit(2)) and of its control groups (cgroups(7)).
// It raises what it may raise, and names what is too low to work with.
package limits

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limit is one limit of a process.
type limit struct {
	resource int
	name     string // for people, "open files"
	constant string // "RLIMIT_NOFILE"
	least    uint64 // that a trace works with; 0: any
	why      string // what it is needed for
	unit     uint64 // of ulimit, bytes; 1: a count
	option   string // of ulimit
	setting  string // in a unit of systemd
	docker   string // of docker run --ulimit
}

// The least values are measured on a trace of one PyTorch process: up to 256 descriptors, mostly maps and programs of the kernel; 3 GiB of
// addresses that are reserved by Go's runtime and the ring, of which a tenth is used; 3 s of CPU time; 12 threads.
var all = []limit{
	{unix.RLIMIT_NOFILE, "open files", "RLIMIT_NOFILE", 320, "the kernel's maps and programs are files", 1, "-n", "LimitNOFILE", "nofile"},
	{unix.RLIMIT_AS, "address space", "RLIMIT_AS", 4 << 30, "most of it is reserved and never used", 1 << 10, "-v", "LimitAS", ""},
	{unix.RLIMIT_DATA, "data segment", "RLIMIT_DATA", 1 << 30, "most of it is reserved and never used", 1 << 10, "-d", "LimitDATA", "data"},
	{unix.RLIMIT_CPU, "CPU time", "RLIMIT_CPU", 10, "the kernel kills what uses more", 1, "-t", "LimitCPU", "cpu"},
	{unix.RLIMIT_FSIZE, "size of files", "RLIMIT_FSIZE", 1 << 20, "a recording is a file", 1 << 10, "-f", "LimitFSIZE", "fsize"},
	{unix.RLIMIT_NPROC, "processes and threads", "RLIMIT_NPROC", 0, "gputrace has up to 32 threads", 1, "-u", "LimitNPROC", "nproc"},
}

// original are the limits that Raise has changed, as they were.
var original = map[int]uint64{}

// beforeKilled is how long before the kernel kills gputrace for its CPU time it is asked to end, seconds: enough to write the results.
const beforeKilled = 5

// Raise raises what a process may raise by itself: each limit, up to the hard one. Go's runtime does so for open files. Of the CPU time,
// which ends at the hard limit without a notice, the last seconds are kept for the end.
func Raise() {
	for _, l := range all {
		var r unix.Rlimit
		if l.resource == unix.RLIMIT_NOFILE || unix.Getrlimit(l.resource, &r) != nil {
			continue
		}
		to := r.Max
		if l.resource == unix.RLIMIT_CPU && to != unix.RLIM_INFINITY {
			to -= min(to, beforeKilled)
		}
		before := r.Cur
		if r.Cur = to; before != to && unix.Setrlimit(l.resource, &r) == nil {
			original[l.resource] = before
		}
	}
}

// Original is what Restore takes, for a program that gputrace starts: the limits as they were before Raise.
func Original() string {
	var out []string
	for resource, value := range original {
		out = append(out, fmt.Sprintf("%d=%d", resource, value))
	}
	return strings.Join(out, ",")
}

// Restore sets limits as Original returned them.
func Restore(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		var resource int
		var value uint64
		if word == "" {
			continue
		}
		if _, err := fmt.Sscanf(word, "%d=%d", &resource, &value); err != nil {
			return fmt.Errorf("limits %q: %w", text, err)
		}
		var r unix.Rlimit
		if err := unix.Getrlimit(resource, &r); err != nil {
			return fmt.Errorf("limits %q: %w", text, err)
		}
		r.Cur = min(value, r.Max)
		if err := unix.Setrlimit(resource, &r); err != nil {
			return fmt.Errorf("limits %q: %w", text, err)
		}
	}
	return nil
}

// TooLow is a limit that gputrace cannot work with.
type TooLow struct {
	Says  string   // which it is
	Fixes []string // how to raise it, a line each
	err   error    // that it has caused; nil: it was seen beforehand
}

func (t *TooLow) Error() string { return t.Says + "\n  " + strings.Join(t.Fixes, ", or\n  ") }
func (t *TooLow) Unwrap() error { return t.err }

// Check looks whether a trace can work under the limits; nil: it can.
func Check() *TooLow {
	for i := range all {
		l := &all[i]
		if have := l.now(); have < l.least {
			return l.tooLow(have, l.least, nil)
		}
	}
	if free := freeThreads(); free < threads {
		return all[len(all)-1].threadsTooLow(free)
	}
	return nil
}

// now is the value of a limit; the largest number: there is none.
func (l *limit) now() uint64 {
	var r unix.Rlimit
	if unix.Getrlimit(l.resource, &r) != nil {
		return math.MaxUint64
	}
	if l.resource == unix.RLIMIT_CPU {
		return r.Max
	}
	return r.Cur
}

func (l *limit) tooLow(have, need uint64, err error) *TooLow {
	t := &TooLow{err: err}
	t.Says = fmt.Sprintf("the limit on %s (%s) is %s, too low for gputrace: %s", l.name, l.constant, l.value(have), l.why)
	if need > have {
		t.Says = fmt.Sprintf("the limit on %s (%s) is %s, gputrace needs %s: %s", l.name, l.constant, l.value(have), l.value(need), l.why)
	}
	t.Fixes = l.fixes()
	return t
}

// value writes a limit with its unit.
func (l *limit) value(n uint64) string {
	switch {
	case l.resource == unix.RLIMIT_CPU:
		return fmt.Sprintf("%d s", n)
	case l.unit == 1:
		return strconv.FormatUint(n, 10)
	case n >= 1<<30:
		return fmt.Sprintf("%.3g GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

func (l *limit) fixes() []string {
	value, inUnit := "unlimited", "infinity"
	if l.resource == unix.RLIMIT_NOFILE {
		value, inUnit = "4096", "4096"
	}
	out := []string{"ulimit " + l.option + " " + value, "systemd: " + l.setting + "=" + inUnit}
	if l.docker != "" {
		out = append(out, "docker run --ulimit "+l.docker+"="+strings.Replace(value, "unlimited", "-1", 1)+" ...")
	}
	return out
}

// Explain returns the limit that an error comes from; nil: none that is known.
func Explain(err error) *TooLow {
	var low *TooLow
	if errors.As(err, &low) {
		return low
	}
	switch {
	case errors.Is(err, unix.EMFILE):
		return of(unix.RLIMIT_NOFILE, err)
	case errors.Is(err, unix.ENFILE):
		return &TooLow{Says: "the machine has no more open files (fs.file-max)", Fixes: []string{"sysctl -w fs.file-max=1000000"}, err: err}
	case errors.Is(err, unix.EFBIG):
		return of(unix.RLIMIT_FSIZE, err)
	case errors.Is(err, unix.ENOMEM):
		return of(unix.RLIMIT_AS, err)
	case errors.Is(err, unix.EAGAIN):
		if free := freeThreads(); free < threads {
			low := all[len(all)-1].threadsTooLow(free)
			low.err = err
			return low
		}
	}
	return nil
}

// of explains an error by a limit, if that is set.
func of(resource int, err error) *TooLow {
	for i := range all {
		if l := &all[i]; l.resource == resource && l.now() != unix.RLIM_INFINITY {
			return l.tooLow(l.now(), l.least, err)
		}
	}
	return nil
}

// threads is how many a trace starts, at most.
const threads = 32

func (l *limit) threadsTooLow(free uint64) *TooLow {
	out := &TooLow{}
	if left, ok := Left(Pids); ok && left == free {
		out.Says = fmt.Sprintf("the control group may have %d more threads (pids.max), gputrace needs %d", free, threads)
		out.Fixes = []string{"docker run --pids-limit 1000 ...", "systemd: TasksMax=infinity"}
		return out
	}
	out.Says = fmt.Sprintf("the user may have %d more processes and threads (RLIMIT_NPROC is %d), gputrace needs %d", free, l.now(), threads)
	out.Fixes = l.fixes()
	return out
}

// freeThreads is how many threads may be started, by the limit of the user, from which root is exempt, and that of the control group.
func freeThreads() uint64 {
	free := uint64(math.MaxUint64)
	if left, ok := Left(Pids); ok {
		free = left
	}
	var r unix.Rlimit
	if os.Getuid() == 0 || unix.Getrlimit(unix.RLIMIT_NPROC, &r) != nil || r.Cur == unix.RLIM_INFINITY {
		return free
	}
	return min(free, r.Cur-min(r.Cur, userThreads(os.Getuid())))
}

// userThreads counts the threads of a user, as far as they are seen.
func userThreads(uid int) (n uint64) {
	folders, _ := os.ReadDir("/proc")
	for _, d := range folders {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		status, err := os.ReadFile("/proc/" + d.Name() + "/status")
		if err != nil {
			continue
		}
		owner, count := -1, uint64(0)
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "Uid:\t"); ok {
				fmt.Sscan(rest, &owner)
			}
			if rest, ok := strings.CutPrefix(line, "Threads:\t"); ok {
				fmt.Sscan(rest, &count)
			}
		}
		if owner == uid {
			n += count
		}
	}
	return n
}
