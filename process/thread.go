// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// A process outlives its main thread if, for example, that calls pthread_exit(3). The kernel then shows the process as
// a zombie, and those files of /proc/PID that belong to the thread are empty or missing: maps, exe, environ, root, cwd,
// ns. The files of another thread, in /proc/TID, have the same content.

// Thread returns the ID of a running thread, for files of /proc and system calls that need one: the PID, unless the
// main thread has ended.
func (p *Process) Thread() int {
	if p.ended {
		return 0
	}
	state, start, err := readStat(p.root)
	if err != nil || start != p.StartTime {
		return p.PID
	}
	return p.thread(state)
}

// Leaderless reports whether the main thread has ended while the process still runs.
func (p *Process) Leaderless() bool { return p.Thread() != p.PID }

// thread is Thread; state is the state of the main thread.
func (p *Process) thread(state byte) int {
	if !hasEnded(state) {
		return p.PID
	}
	if last := int(p.living.Load()); last != 0 && p.runs(last) {
		return last
	}
	entries, _ := os.ReadDir(p.root + "/task")
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil && tid != p.PID && p.runs(tid) {
			p.living.Store(int32(tid))
			return tid
		}
	}
	return p.PID
}

// Blame replaces an error of reading the process by ErrEnded if the process has ended or is ending, because its memory
// is freed first, which causes misleading errors. It returns other errors unchanged.
func (p *Process) Blame(err error) error {
	if err != nil && (!p.Alive() || p.ending()) {
		return ErrEnded
	}
	return err
}

// ending reports whether the thread used for the process is exiting: PF_EXITING of linux/sched.h.
func (p *Process) ending() bool {
	const exiting = 0x4
	flags, ok := p.flags()
	return !ok || flags&exiting != 0
}

// OfKernel reports whether the process is a thread of the kernel, which has no memory of its own: PF_KTHREAD of linux/sched.h.
func (p *Process) OfKernel() bool {
	const kernelThread = 0x200000
	flags, ok := p.flags()
	return ok && flags&kernelThread != 0
}

// flags returns field 9 of the stat file of the thread used for the process.
func (p *Process) flags() (flags uint64, ok bool) {
	const flagsAfterName = 9 - 3
	b, err := os.ReadFile(p.dir() + "/stat")
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if err != nil || len(f) <= flagsAfterName {
		return 0, false
	}
	flags, err = strconv.ParseUint(f[flagsAfterName], 10, 64)
	return flags, err == nil
}

// runs reports whether the process has a thread with this ID that has not ended.
func (p *Process) runs(tid int) bool {
	state, _, err := readStat(p.root + "/task/" + strconv.Itoa(tid))
	return err == nil && !hasEnded(state)
}

// hasEnded reports whether a state of /proc/PID/stat means that the thread has ended: a zombie, or dead.
func hasEnded(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// dir returns the folder of /proc with the process's files.
func (p *Process) dir() string {
	if p.ended || p.StartTime == 0 {
		return p.root
	}
	if tid := p.Thread(); tid != p.PID {
		return "/proc/" + strconv.Itoa(tid)
	}
	return p.root
}
