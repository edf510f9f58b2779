// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxThreads limits how many threads are checked for a filter: usually one filter applies to all of them.
const maxThreads = 4096

// Filtered reports whether any thread has a seccomp filter or is in strict mode (seccomp(2)).
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

// seccompMode reads the line "Seccomp" of a status file (proc(5)). It returns 0 for a kernel without filters, which has
// no such line.
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
