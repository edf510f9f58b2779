// SPDX-License-Identifier: Apache-2.0

package process

import (
	"io"
	"os"
	"strconv"
	"strings"
)

// maxEnvironment bounds what is read of a process's environment, bytes. The kernel's own limit is a quarter of the stack
// limit, 2 MiB by default (execve(2)).
const maxEnvironment = 8 << 20

// PIDs are the numbers of the process: first the one that we see it by, then its number in each PID namespace further in
// (NSpid of proc(5), Linux 4.1). It is PID alone when the kernel does not say.
func (p *Process) PIDs() []int {
	out := []int{p.PID}
	status, err := readStatus(p.root)
	if err != nil {
		return out
	}
	for i, f := range strings.Fields(status["NSpid"]) {
		if pid, err := strconv.Atoi(f); err == nil && i > 0 {
			out = append(out, pid)
		}
	}
	return out
}

// Namespace identifies the namespace of a kind (pid, mnt, user ...) that the process is in, such as "pid:[4026531836]"
// (namespaces(7)).
func (p *Process) Namespace(kind string) (string, error) {
	link, err := os.Readlink(p.dir() + "/ns/" + kind)
	if err != nil {
		return "", p.wrap("read the "+kind+" namespace of", err)
	}
	return link, nil
}

// Cgroup is the control group of the process in the unified hierarchy (cgroups(7)); of several hierarchies the last that is
// listed. Empty when it cannot be read.
func (p *Process) Cgroup() string {
	lines := strings.Split(strings.TrimSpace(p.Cgroups()), "\n")
	f := strings.SplitN(lines[len(lines)-1], ":", 3)
	return f[len(f)-1]
}

// Cgroups is the control group of the process in each hierarchy, as /proc/PID/cgroup has them. Empty when it cannot be read.
func (p *Process) Cgroups() string {
	b, _ := os.ReadFile(p.dir() + "/cgroup")
	return string(b)
}

// Inside finds the processes that have a number in a PID namespace further in than ours, as a shell in their container
// shows it.
func Inside(pid int) []*Process {
	var out []*Process
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		outer, err := strconv.Atoi(e.Name())
		if err != nil || outer == pid {
			continue
		}
		p, err := Open(outer)
		if err != nil {
			continue
		}
		if numbers := p.PIDs(); numbers[len(numbers)-1] == pid {
			out = append(out, p)
		}
	}
	return out
}

// Environ is the environment that the process was started with, as "NAME=value". What it has set itself since is not in it.
func (p *Process) Environ() ([]string, error) {
	f, err := os.Open(p.dir() + "/environ")
	if err != nil {
		return nil, p.wrap("read the environment of", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEnvironment))
	if err != nil {
		return nil, p.wrap("read the environment of", err)
	}
	if len(b) == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
}
