package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// maxArguments is how much of a command line an expression is compared with.
const maxArguments = 256

// searchProcesses finds the processes that --name and --all mean. Those of --name that use no CUDA are left out, unless it is
// waited for.
func searchProcesses(o *recordOptions) ([]*process.Process, error) {
	if o.name == "" && !o.all {
		return nil, nil
	}
	wanted, err := regexp.Compile(o.name)
	if err != nil {
		return nil, usage("--name: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []*process.Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue // it has just ended
		}
		named := o.name != "" && matches(wanted, p)
		if named && (o.wait || o.children) || (named || o.all) && tracer.Traceable(p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// matches reports whether an expression finds a process: its program's name, or its command line with a space between arguments.
func matches(e *regexp.Regexp, p *process.Process) bool {
	return e.MatchString(p.Name()) || e.MatchString(strings.Join(p.Cmdline(maxArguments), " "))
}
