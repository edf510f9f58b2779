// SPDX-License-Identifier: Apache-2.0

//go:build linux

package limits

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Controller is a resource that control groups limit.
type Controller struct {
	name               string // of the hierarchy of cgroups v1
	limit, usage       string // files of v2
	oldLimit, oldUsage string // files of v1
	stat, freed        string // file with what of the usage the kernel gives up first, and the prefix of its names in v1; empty: none
}

// The controllers that are looked at.
var (
	Memory = Controller{"memory", "memory.max", "memory.current", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_"}
	Pids   = Controller{"pids", "pids.max", "pids.current", "pids.max", "pids.current", "", ""}
)

// Left is the least that our control group and those above it may still take; not ok: nothing limits it.
func Left(c Controller) (left uint64, ok bool) {
	return c.left(setting("/proc/self/cgroup"), "/sys/fs/cgroup")
}

// left is that by what /proc/self/cgroup says, where root is where the hierarchies are mounted (cgroups(7)).
func (c *Controller) left(cgroups, root string) (left uint64, ok bool) {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		dir, limit, usage, freed := root, c.limit, c.usage, ""
		switch {
		case f[1] == c.name:
			dir, limit, usage, freed = filepath.Join(root, c.name), c.oldLimit, c.oldUsage, c.freed
		case f[1] != "":
			continue
		}
		for path := filepath.Clean("/" + f[2]); ; path = filepath.Dir(path) {
			most, err := strconv.ParseUint(setting(filepath.Join(dir, path, limit)), 10, 64)
			used, uerr := strconv.ParseUint(setting(filepath.Join(dir, path, usage)), 10, 64)
			if err == nil && uerr == nil && most < 1<<62 { // cgroup v1 writes no limit as a very large one
				used -= min(used, c.cached(filepath.Join(dir, path), freed))
				if free := most - min(used, most); !ok || free < left {
					left, ok = free, true
				}
			}
			if path == "/" {
				break
			}
		}
	}
	return left, ok
}

// cached is what of the usage are files that the kernel has read and can read again.
func (c *Controller) cached(group, prefix string) (n uint64) {
	if c.stat == "" {
		return 0
	}
	for line := range strings.Lines(setting(filepath.Join(group, c.stat))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == prefix+"inactive_file" || name == prefix+"active_file" {
			bytes, _ := strconv.ParseUint(value, 10, 64)
			n += bytes
		}
	}
	return n
}

// setting reads a file of the kernel; empty when there is none.
func setting(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}
