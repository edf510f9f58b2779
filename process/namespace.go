// SPDX-License-Identifier: Apache-2.0

package process

import (
	"io"
	"os"
	"strconv"
	"strings"
)

// maxEnvironment limits how much is read of a process's environment, bytes. The kernel's own limit is a quarter of the
// stack limit, 2 MiB by default (execve(2)).
const maxEnvironment = 8 << 20

// PIDs returns the numbers of the process: the one in our PID namespace, then one for each nested namespace (NSpid of
// proc(5), Linux 4.1). If the kernel does not report them, it returns only PID.
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

// Namespace returns the identity of the process's namespace of a kind (pid, mnt, user ...), such as "pid:[4026531836]"
// (namespaces(7)).
func (p *Process) Namespace(kind string) (string, error) {
	link, err := os.Readlink(p.dir() + "/ns/" + kind)
	if err != nil {
		return "", p.wrap("read the "+kind+" namespace of", err)
	}
	return link, nil
}

// Cgroup returns the control group of the process in the unified hierarchy (cgroups(7)), or in the last one listed if
// there are several. It is empty when it cannot be read.
func (p *Process) Cgroup() string {
	lines := strings.Split(strings.TrimSpace(p.Cgroups()), "\n")
	f := strings.SplitN(lines[len(lines)-1], ":", 3)
	return f[len(f)-1]
}

// Cgroups returns the control group of the process in each hierarchy, in the format of /proc/PID/cgroup. It is empty
// when it cannot be read.
func (p *Process) Cgroups() string {
	b, _ := os.ReadFile(p.dir() + "/cgroup")
	return string(b)
}

// Inside finds the processes that have this PID in a nested PID namespace, where a shell in their container would show it.
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

// Environ returns the initial environment of the process, as "NAME=value", without what the process has set itself.
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
