// SPDX-License-Identifier: Apache-2.0

// Package place finds the container, pod and job that a process belongs to. What it takes from the control group, a program
// cannot forge; the environment of a process is its own claim, and is used only where no control group has an answer.
package place

import (
	"regexp"
	"strings"

	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
)

// Place is where a process runs. Fields that are not known are empty.
type Place struct {
	Runtime   string // as process.Container.Runtime; empty: in no container, and in no job of Slurm
	Container string // identifier of the container
	Pod       string // UID of the Kubernetes pod
	Scheduler string // "slurm", or the one whose variable named Job
	Job       string // identifier of the job
	Step      string // step of the Slurm job
	Unit      string // the outermost service of systemd, such as "trainer.service"
	Cgroup    string // path of the control group
}

var (
	podPath  = regexp.MustCompile(`[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:[/:]|$)`)
	stepPath = regexp.MustCompile(`/(?:[^/]+_)?slurm[^:]*/job_([0-9]+)(?:/step_([0-9a-z]+))?(?:/|$)`)
	unitPath = regexp.MustCompile(`/([^/:]+\.service)(?:/|$)`)
)

// Job variables, the most specific first. JobVariables of the agent's configuration come before them.
var jobVariables = []struct{ scheduler, name string }{
	{"slurm", "SLURM_JOB_ID"},
	{"ray", "RAY_JOB_ID"},
	{"kueue", "JOB_NAME"},
	{"pbs", "PBS_JOBID"},
	{"lsf", "LSB_JOBID"},
	{"torchelastic", "TORCHELASTIC_RUN_ID"},
}

// maxValue is the maximum length of a value that a program chooses, in characters.
const maxValue = 128

// Find returns the place of a process with this text of /proc/PID/cgroup and this environment. The variables name jobs too, and
// come before the usual ones.
func Find(cgroups string, environ, variables []string) *Place {
	p := &Place{}
	c := process.ContainerOf(cgroups)
	p.Runtime, p.Container = c.Runtime, c.ID
	for line := range strings.Lines(cgroups) {
		p.addPath(strings.TrimSpace(line))
	}
	if p.Runtime == "slurm" {
		p.Runtime, p.Container = "", ""
	}
	if p.Job == "" {
		p.addVariables(environ, variables)
	}
	return p
}

// addPath takes what a line of /proc/PID/cgroup has, unless an earlier line had it.
func (p *Place) addPath(line string) {
	f := strings.SplitN(line, ":", 3)
	path := f[len(f)-1]
	if p.Cgroup == "" || f[0] == "0" && len(path) > len(p.Cgroup) {
		p.Cgroup = words.Cut(words.Line(path), 2*maxValue)
	}
	if m := unitPath.FindStringSubmatch(path); m != nil && p.Unit == "" {
		p.Unit = words.Cut(words.Line(m[1]), maxValue)
	}
	// A user may make groups of any name below a slice of their own. A container that may do so can only add to the end.
	if strings.Contains(path, "/user.slice/") {
		return
	}
	if m := podPath.FindStringSubmatch(path); m != nil && p.Pod == "" {
		p.Pod = strings.ReplaceAll(m[1], "_", "-")
	}
	if m := stepPath.FindStringSubmatch(path); m != nil && p.Job == "" && p.Pod == "" {
		p.Scheduler, p.Job, p.Step = "slurm", m[1], m[2]
	}
}

// addVariables takes the job from the environment.
func (p *Place) addVariables(environ, variables []string) {
	values := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			values[name] = value
		}
	}
	set := func(scheduler, name string) {
		if v := values[name]; v != "" && p.Job == "" {
			p.Scheduler, p.Job = scheduler, words.Cut(words.Line(v), maxValue)
		}
	}
	for _, name := range variables {
		set("", name)
	}
	for _, v := range jobVariables {
		set(v.scheduler, v.name)
	}
	if p.Scheduler == "slurm" {
		p.Step = words.Cut(words.Line(values["SLURM_STEP_ID"]), maxValue)
	}
}
