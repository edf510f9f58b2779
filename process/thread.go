// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// A process outlives its main thread, such as when that calls pthread_exit(3). The kernel then shows the process as a zombie, and the files of
// /proc/PID that belong to the thread are empty or missing: maps, exe, environ, root, cwd, ns. Those of another thread, /proc/TID, are the same.

// Thread is the ID of a thread that runs, for files of /proc and calls that take one: the main thread, which has the PID, unless that has ended.
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

// Leaderless reports whether the main thread has ended and the process runs on.
func (p *Process) Leaderless() bool { return p.Thread() != p.PID }

// thread is Thread; state is that of the main thread.
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

// Blame returns ErrEnded in the place of an error of reading the process if that has ended meanwhile, or is ending: its memory goes first, and
// what is left of it looks like anything. Every other error is returned as it is.
func (p *Process) Blame(err error) error {
	if err != nil && (!p.Alive() || p.ending()) {
		return ErrEnded
	}
	return err
}

// ending reports whether the thread that stands for the process is on its way out: PF_EXITING (linux/sched.h) in field 9 of its stat file.
func (p *Process) ending() bool {
	const exiting, flagsAfterName = 0x4, 9 - 3
	b, err := os.ReadFile(p.dir() + "/stat")
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if err != nil || len(f) <= flagsAfterName {
		return true
	}
	flags, err := strconv.ParseUint(f[flagsAfterName], 10, 64)
	return err == nil && flags&exiting != 0
}

// runs reports whether the process has a thread of this number that has not ended.
func (p *Process) runs(tid int) bool {
	state, _, err := readStat(p.root + "/task/" + strconv.Itoa(tid))
	return err == nil && !hasEnded(state)
}

// hasEnded reports whether a state of /proc/PID/stat is of a thread that has ended: a zombie, or dead.
func hasEnded(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// dir is the folder of /proc that has the process's files.
func (p *Process) dir() string {
	if p.ended || p.StartTime == 0 {
		return p.root
	}
	if tid := p.Thread(); tid != p.PID {
		return "/proc/" + strconv.Itoa(tid)
	}
	return p.root
}
