// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxThreads bounds of how many threads is asked whether a filter holds for them: mostly one holds for all.
const maxThreads = 4096

// Filtered reports whether the kernel asks a filter of any thread before a system call (seccomp(2)), or allows it hardly any.
func (p *Process) Filtered() (bool, error) {
	dir := p.root + "/task"
	threads, err := os.ReadDir(dir)
	if err != nil {
		return false, p.wrap("list the threads of", err)
	}
	asked := 0
	for _, t := range threads[:min(len(threads), maxThreads)] {
		mode, err := seccompMode(dir + "/" + t.Name() + "/status")
		if err != nil {
			continue // it has just ended
		}
		if mode != 0 {
			return true, nil
		}
		asked++
	}
	if asked == 0 {
		return false, p.wrap("read the status of", os.ErrNotExist)
	}
	return false, nil
}

// seccompMode reads the line "Seccomp" of a status file (proc(5)). A kernel without filters has none: 0.
func seccompMode(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		value, ok := strings.CutPrefix(s.Text(), "Seccomp:")
		if !ok {
			continue
		}
		mode, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil {
			return 0, fmt.Errorf("%s: Seccomp is %q", path, value)
		}
		return mode, nil
	}
	return 0, s.Err()
}
