// SPDX-License-Identifier: Apache-2.0

// Package process inspects a running process from outside: its mappings, the mapped files (even if deleted or in
// another mount namespace), and its memory, in bounded reads. It never stops, signals or changes the process.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Errors on which callers branch. They wrap the cause.
var (
	ErrNotExist = errors.New("no such process")
	// ErrEnded is an ErrNotExist of a process that existed, and has ended or is about to.
	ErrEnded      = endedMeanwhile{}
	ErrPermission = errors.New("not permitted")
	// ErrPrivate is the reason of an ErrPermission for a file, not for the process.
	ErrPrivate = errors.New("CAP_DAC_READ_SEARCH or root may read it")
)

type endedMeanwhile struct{}

func (endedMeanwhile) Error() string { return "the process has ended" }

// Is implements errors.Is.
func (endedMeanwhile) Is(target error) bool { return target == ErrNotExist }

// Process is one process. It is identified by PID and start time, so that another process with a reused PID is not mistaken for it.
type Process struct {
	PID int
	// StartTime is in clock ticks since boot (field 22 of /proc/PID/stat, proc(5)).
	StartTime uint64

	root   string       // "/proc/PID"
	ended  bool         // it must not be accessed: the PID can belong to another process
	living atomic.Int32 // the thread that the last call of living found; 0: none
}

// Open opens a process. The error wraps ErrNotExist or ErrPermission; for a zombie it is an EndedError. A thread ID is
// rejected unless it is the PID.
func Open(pid int) (*Process, error) {
	p := &Process{PID: pid, root: "/proc/" + strconv.Itoa(pid)}
	status, err := readStatus(p.root)
	if err != nil {
		return nil, p.wrap("open", err)
	}
	if tgid := status["Tgid"]; tgid != strconv.Itoa(pid) {
		owner, _ := strconv.Atoi(tgid)
		return nil, &ThreadError{pid, owner}
	}
	if p.StartTime, err = p.startTime(); err != nil {
		return nil, p.wrap("open", err)
	}
	if state := status["State"]; state != "" && hasEnded(state[0]) && !p.Alive() {
		parent, _ := strconv.Atoi(status["PPid"])
		return nil, &EndedError{PID: pid, Name: p.Name(), Parent: parent}
	}
	return p, nil
}

// ThreadError is returned for the number of a thread instead of its process. It is an ErrNotExist.
type ThreadError struct {
	Thread  int
	Process int
}

func (e *ThreadError) Error() string {
	return fmt.Sprintf("%d is a thread of process %d: use -p %d", e.Thread, e.Process, e.Process)
}

// Is implements errors.Is.
func (e *ThreadError) Is(target error) bool { return target == ErrNotExist }

// KernelError describes a thread of the kernel.
type KernelError struct {
	PID  int
	Name string
}

func (e *KernelError) Error() string {
	return fmt.Sprintf("pid %d (%s) is a thread of the kernel, which has no memory of its own", e.PID, e.Name)
}

// EndedError describes a zombie: a process that has ended and whose parent has not waited for it yet. It is an ErrNotExist.
type EndedError struct {
	PID    int
	Name   string // as Process.Name
	Parent int    // 0: not known
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("pid %d (%s) has ended: it is a zombie, which its parent %d has not waited for", e.PID, e.Name, e.Parent)
}

// Is implements errors.Is.
func (e *EndedError) Is(target error) bool { return target == ErrNotExist || target == ErrEnded }

// Ended returns a process that ended before it could be opened: all its methods fail.
func Ended(pid int) *Process { return &Process{PID: pid, root: "/proc/0", ended: true} }

// Alive reports whether the process still runs: it has not ended, is not a zombie, and its PID is not another process's
// now. A process continues to run when only its main thread has ended.
func (p *Process) Alive() bool {
	state, start, err := readStat(p.root)
	if err != nil || start != p.StartTime {
		return false
	}
	return !hasEnded(state) || p.thread(state) != p.PID
}

// Name returns the process's command name, at most 15 bytes. The process can choose it, so unprintable characters are
// escaped as in Go. It is empty when it cannot be read.
func (p *Process) Name() string {
	b, _ := os.ReadFile(p.root + "/comm")
	quoted := strconv.Quote(string(bytes.TrimSpace(b)))
	return quoted[1 : len(quoted)-1]
}

// maxCmdline limits how much is read of a command line, bytes: a process can declare any part of its memory to be it
// (PR_SET_MM_MAP of prctl(2)).
const maxCmdline = 256 << 10

// Cmdline returns the command line, at most limit arguments, unescaped. It is empty for a kernel thread or when it cannot be read.
func (p *Process) Cmdline(limit int) []string {
	f, err := os.Open(p.dir() + "/cmdline")
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCmdline))
	if err != nil || len(b) == 0 {
		return nil
	}
	args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	return args[:min(len(args), limit)]
}

// CodePages returns the number of pages that are executable and not writable: exec_vm of the kernel's mm_struct, which
// status(5) shows as the sum of VmExe and VmLib, in kB. It is 0 when it cannot be read.
func (p *Process) CodePages() uint64 {
	status, err := p.status()
	if err != nil {
		return 0
	}
	kB := func(name string) uint64 {
		n, _ := strconv.ParseUint(strings.TrimSuffix(status[name], " kB"), 10, 64)
		return n
	}
	return (kB("VmExe") + kB("VmLib")) * 1024 / uint64(os.Getpagesize())
}

// UID returns the effective user ID of the process.
func (p *Process) UID() (int, error) {
	status, err := p.status()
	if err != nil {
		return 0, p.wrap("read status", err)
	}
	f := strings.Fields(status["Uid"])
	if len(f) < 2 {
		return 0, fmt.Errorf("read status of pid %d: no Uid line", p.PID)
	}
	return strconv.Atoi(f[1])
}

// Exe returns the path of the executable in the process's own mount namespace.
func (p *Process) Exe() (string, error) {
	s, err := os.Readlink(p.dir() + "/exe")
	if err != nil {
		return "", p.wrap("read exe", err)
	}
	return s, nil
}

// Cwd returns the working directory of the process in its own mount namespace. It is empty when it cannot be read.
func (p *Process) Cwd() string {
	s, _ := os.Readlink(p.dir() + "/cwd")
	return s
}

// Children returns the PIDs of the child processes.
func (p *Process) Children() []int {
	var out []int
	tasks, _ := filepath.Glob(p.root + "/task/*/children")
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// Parent returns the PID of the parent process; 0 when it cannot be read, or is in an outer namespace.
func (p *Process) Parent() int {
	status, err := p.status()
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(status["PPid"])
	return n
}

func (p *Process) status() (map[string]string, error) { return readStatus(p.dir()) }

func readStatus(dir string) (map[string]string, error) {
	b, err := os.ReadFile(dir + "/status")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok {
			out[k] = strings.TrimSpace(v)
		}
	}
	return out, nil
}

func (p *Process) startTime() (uint64, error) {
	_, start, err := readStat(p.root)
	return start, err
}

// readStat reads the state and the start time, fields 3 and 22 of a stat file (proc(5)).
func readStat(dir string) (state byte, start uint64, err error) {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The command name, field 2, may contain spaces and parentheses: count from the last one.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, fmt.Errorf("malformed stat line of %d bytes", len(b))
	}
	const startTimeAfterName = 22 - 3
	f := strings.Fields(string(b[i+1:]))
	if len(f) <= startTimeAfterName {
		return 0, 0, fmt.Errorf("stat line has %d fields after the name, want more than %d", len(f), startTimeAfterName)
	}
	start, err = strconv.ParseUint(f[startTimeAfterName], 10, 64)
	return f[0][0], start, err
}

// wrap adds the failed step to an error of this process and makes it match the sentinels.
func (p *Process) wrap(step string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%s pid %d: %w: %w", step, p.PID, ErrNotExist, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s pid %d: %w: %w", step, p.PID, ErrPermission, err)
	default:
		return fmt.Errorf("%s pid %d: %w", step, p.PID, err)
	}
}
