// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// PauseKind is the reason why a process does not run.
type PauseKind uint8

// The kinds. Except for Running, no thread of the process runs until it is resumed from outside.
const (
	Running  PauseKind = iota
	Signal             // stopped by job control: SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU
	Debugger           // stopped by a process that traces it (ptrace(2)): a debugger, or a tool that makes a checkpoint
	Freezer            // its control group is frozen (cgroups(7))
	CoreDump           // it has crashed, and the kernel is writing its core
)

// Pause describes why a process does not run. The zero value means that it runs, as far as known.
type Pause struct {
	Kind     PauseKind
	PID      int    // of the paused process
	Debugger int    // PID; 0: not known
	Name     string // name of the debugger, as Process.Name
	Group    string // frozen control group: the process's, or one above it
}

// String returns half a sentence, for "pid N is ..."; empty for a process that runs.
func (p Pause) String() string {
	switch p.Kind {
	case Signal:
		return fmt.Sprintf("stopped by a signal (kill -CONT %d continues it)", p.PID)
	case Debugger:
		if p.Debugger == 0 {
			return "held by a debugger"
		}
		return fmt.Sprintf("held by a debugger (%s, pid %d)", p.Name, p.Debugger)
	case Freezer:
		return fmt.Sprintf("frozen by its control group %s (as by docker pause; thaw the group to continue it)", p.Group)
	case CoreDump:
		return "writing its core dump after a crash"
	default:
		return ""
	}
}

// After returns the text to append to the name of a process: a comma and String, or nothing for one that runs.
func (p Pause) After() string {
	if p.Kind == Running {
		return ""
	}
	return ", " + p.String()
}

// pauseCheck is the time between two checks of the threads: while a program is traced call by call, each thread stops briefly.
const pauseCheck = 10 * time.Millisecond

// Paused reports why the process does not run. If that cannot be found out, the process counts as running.
func (p *Process) Paused() Pause {
	status, err := p.status()
	if err != nil {
		return Pause{}
	}
	if status["CoreDumping"] == "1" {
		return Pause{Kind: CoreDump, PID: p.PID}
	}
	if group := p.frozen(); group != "" {
		return Pause{Kind: Freezer, PID: p.PID, Group: group}
	}
	first := p.stops()
	if first.kind == Running {
		return Pause{}
	}
	time.Sleep(pauseCheck)
	if p.stops() != first {
		return Pause{}
	}
	out := Pause{Kind: first.kind, PID: p.PID, Debugger: first.tracer}
	if status, err := readStatus("/proc/" + strconv.Itoa(first.tracer)); err == nil { // the tracer is one thread of a process
		out.Debugger, _ = strconv.Atoi(status["Tgid"])
		out.Name = (&Process{root: "/proc/" + status["Tgid"]}).Name()
	}
	return out
}

// stops describes how the threads of a process are stopped.
type stops struct {
	kind     PauseKind
	tracer   int    // thread ID; 0: none
	switches uint64 // sum over the threads checked so far
}

// stops checks every thread that has not ended, until it finds one that is not stopped, which means Running.
func (p *Process) stops() (s stops) {
	entries, _ := os.ReadDir(p.root + "/task")
	for _, e := range entries[:min(len(entries), maxThreads)] {
		status, err := readStatus(p.root + "/task/" + e.Name())
		state := status["State"]
		if err != nil || state == "" || hasEnded(state[0]) {
			continue
		}
		switch state[0] {
		case 'T':
			s.kind = max(s.kind, Signal)
		case 't':
			s.kind = max(s.kind, Debugger)
			s.tracer, _ = strconv.Atoi(status["TracerPid"])
		default:
			return stops{}
		}
		for _, name := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
			n, _ := strconv.ParseUint(status[name], 10, 64)
			s.switches += n
		}
	}
	return s
}

// frozen returns the control group of the process if it, or one above it, is frozen; empty when none is or that cannot be read.
func (p *Process) frozen() string {
	for line := range strings.Lines(p.Cgroups()) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				b, err := os.ReadFile(filepath.Join(mount, f[2], "cgroup.events"))
				if err == nil && strings.Contains("\n"+string(b), "\nfrozen 1") {
					return f[2]
				}
			}
		case f[1] == "freezer":
			b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/freezer", f[2], "freezer.state"))
			if err == nil && strings.TrimSpace(string(b)) == "FROZEN" {
				return f[2]
			}
		}
	}
	return ""
}
