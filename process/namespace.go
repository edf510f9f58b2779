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
	status, err := p.status()
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

// Environ is the environment that the process was started with, as "NAME=value". What it has set itself since is not in it.
func (p *Process) Environ() ([]string, error) {
	f, err := os.Open(p.root + "/environ")
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

// Exists reports whether the process can see a path, in its own root directory. It does not follow a link at the path's end.
func (p *Process) Exists(path string) bool {
	_, err := os.Lstat(p.root + "/root" + path)
	return err == nil
}
