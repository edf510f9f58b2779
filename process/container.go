// SPDX-License-Identifier: Apache-2.0

package process

import (
	"regexp"
	"strings"
)

// Container identifies the container of a process by its control group. The zero value means that it is in none.
type Container struct {
	Runtime string // "docker", "podman", "containerd", "cri-o", "lxc", "slurm" or "container"
	ID      string // the runtime's identifier: 64 hexadecimal digits, a name for lxc, a job number for slurm
	Name    string // host name that the process sees, in Kubernetes the pod; empty: not known
}

// shortID is the number of digits of an ID that are shown to people, as in docker ps.
const shortID = 12

// String returns the container for people; empty for none.
func (c *Container) String() string {
	if c.Runtime == "" {
		return ""
	}
	id := c.ID
	if len(id) == 64 {
		id = id[:shortID]
	}
	if c.Name != "" && !strings.HasPrefix(id, c.Name) {
		id = c.Name + " " + id
	}
	return strings.TrimSpace(c.Runtime + " " + id)
}

// containerGroups match the control groups of containers: the last element of systemd's and of cgroupfs's paths, as
// runc (libcontainer/cgroups), podman, containerd and cri-o, lxc and Slurm (cgroup plugin) write them. The first
// capture group is the ID.
var containerGroups = []struct {
	runtime string
	path    *regexp.Regexp
}{
	{"docker", regexp.MustCompile(`/docker[-/]([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
	{"docker", regexp.MustCompile(`/ecs/[^/]+/([0-9a-f]{32}-\d+)(?:/|$)`)},
	{"podman", regexp.MustCompile(`/libpod-(?:conmon-)?([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
	{"containerd", regexp.MustCompile(`[/:](?:cri-containerd|nerdctl)[-:]([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
	{"cri-o", regexp.MustCompile(`/crio-([0-9a-f]{64})(?:\.scope)?(?:/|$)`)},
	{"container", regexp.MustCompile(`/kubepods.*/([0-9a-f]{64})(?:/|$)`)},
	{"lxc", regexp.MustCompile(`/lxc(?:\.payload)?[./]([^/]+)(?:/|$)`)},
	{"slurm", regexp.MustCompile(`/slurm.*/job_([0-9]+)(?:/|$)`)},
}

// Container returns the container of the process. If the control group shows none but the PID namespace differs from
// ours, the process is in an unknown container.
func (p *Process) Container() Container {
	c := ContainerOf(p.Cgroups())
	if c.Runtime == "" {
		own, err := (&Process{root: "/proc/self"}).Namespace("pid")
		if theirs, e := p.Namespace("pid"); err != nil || e != nil || own == theirs {
			return Container{}
		}
		c.Runtime = "container"
	}
	if environ, err := p.Environ(); err == nil && c.Runtime != "slurm" {
		for _, e := range environ {
			if name, ok := strings.CutPrefix(e, "HOSTNAME="); ok {
				c.Name = name
			}
		}
	}
	return c
}

// ContainerOf finds the control group of a container in the lines of /proc/PID/cgroup. If containers are nested, as in a
// cluster whose nodes are containers, it is the innermost.
func ContainerOf(cgroups string) Container {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		path, found, at := f[len(f)-1], Container{}, -1
		for _, g := range containerGroups {
			all := g.path.FindAllStringSubmatchIndex(path, -1)
			if len(all) == 0 || all[len(all)-1][2] <= at {
				continue
			}
			m := all[len(all)-1]
			found, at = Container{Runtime: g.runtime, ID: path[m[2]:m[3]]}, m[2]
		}
		if at >= 0 {
			return found
		}
	}
	return Container{}
}
