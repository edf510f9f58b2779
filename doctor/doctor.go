// SPDX-License-Identifier: Apache-2.0

// Package doctor says whether tracing works on this machine and of a process, and what to do when it does not. It asks: the
// kernel for its features, a system call whether it is refused, a probe whether it counts. What it finds out of a process is found
// by the code that traces it.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// State is the outcome of a check.
type State uint8

// The outcomes. Unknown: it could not be found out, or says nothing by itself.
const (
	OK State = iota
	Failed
	Unknown
)

func (s State) String() string { return [...]string{"ok", "failed", "unknown"}[s] }

// MarshalText writes the outcome's name into JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Group is what a check is about.
type Group string

// The groups, in their order.
const (
	Kernel  Group = "kernel"
	Rights  Group = "rights"
	Limits  Group = "limits"
	Target  Group = "process"
	Library Group = "libraries"
	Runtime Group = "program"
	Attach  Group = "attach"
)

// Fix is a line that mends what failed.
type Fix struct {
	Where string `json:"where"` // host, sysctl, docker, kubernetes: where it is to be typed or written
	Line  string `json:"line"`
}

// File is a library that would be hooked.
type File struct {
	Path      string   `json:"path"`
	BuildID   string   `json:"build_id"` // empty: it has none
	Functions []string `json:"functions"`
	Absent    []string `json:"absent"` // functions that are hooked in other versions of the library
}

// Check is one thing that was looked at.
type Check struct {
	Group  Group  `json:"group"`
	Name   string `json:"name"`
	State  State  `json:"state"`
	Says   string `json:"says"`
	Needed bool   `json:"needed"` // tracing does not work when this failed
	Fixes  []Fix  `json:"fixes,omitempty"`
	File   *File  `json:"file,omitempty"`
}

// Options say what to look at.
type Options struct {
	PID      int           // 0: this machine only
	For      time.Duration // how long calls are counted in the process; 0: 1 s
	CacheDir string        // of unwind tables; empty: none
	Memory   string        // how it is to be read, as directmap.ParseMode takes it; empty: auto

	ring int // that the memory has room for, bytes; 0: the default
}

// Report is what was found.
type Report struct {
	PID     int     `json:"pid,omitempty"`
	Program string  `json:"program,omitempty"` // name of the process: its own words
	Checks  []Check `json:"checks"`
	Works   bool    `json:"works"`
	Verdict string  `json:"verdict"` // one sentence

	paused  string // why the process does not run; empty: it does
	ownOnly bool   // only processes of gputrace's own user can be read
	tooLow  bool   // gputrace's own limits or memory are too low to try anything
}

func (r *Report) add(c ...Check) { r.Checks = append(r.Checks, c...) }

// failed finds the first check that keeps tracing from working, of a group, or of all when group is empty.
func (r *Report) failed(group Group) *Check {
	i := slices.IndexFunc(r.Checks, func(c Check) bool {
		return c.State == Failed && c.Needed && (group == "" || c.Group == group)
	})
	if i < 0 {
		return nil
	}
	return &r.Checks[i]
}

// judge writes the verdict. The attach test is the last check, and the consequence of the others.
func (r *Report) judge() {
	c := r.failed("")
	if r.tooLow {
		c = r.failed(Limits)
	}
	r.Works = c == nil
	switch {
	case r.Works && r.paused != "":
		r.Verdict = fmt.Sprintf("tracing will work, once pid %d runs: it is %s", r.PID, r.paused)
	case r.Works && r.PID != 0:
		r.Verdict = fmt.Sprintf("tracing will work: gputrace -p %d", r.PID)
	case r.Works && r.ownOnly:
		r.Verdict = "tracing will work on this machine, for processes of the user that runs gputrace; gputrace doctor -p PID checks one"
	case r.Works:
		r.Verdict = "tracing will work on this machine; gputrace doctor -p PID checks a process"
	default:
		r.Verdict = fmt.Sprintf("tracing will not work: %s: %s", c.Name, firstLine(c.Says))
	}
}

func firstLine(s string) string {
	for i, r := range s {
		if r == '\n' {
			return s[:i]
		}
	}
	return s
}

// defaultFor is how long calls are counted: several steps of most jobs.
const defaultFor = time.Second

func (o *Options) duration() time.Duration { return cmp.Or(o.For, defaultFor) }
