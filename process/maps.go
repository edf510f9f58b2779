// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Mapping is one line of /proc/PID/maps.
type Mapping struct {
	Start, End uint64 // addresses, [Start, End)
	Offset     uint64 // file offset of Start, bytes
	Exec       bool
	Writable   bool
	Shared     bool   // writes reach the file, or other processes
	Device     string // major:minor, hex
	Inode      uint64 // 0: no file
	// Path is the file in the process's own mount namespace, or "[heap]", "[vdso]", or empty. It excludes the kernel's
	// " (deleted)". A newline is \012, as the kernel writes it, so that a path fits in one line.
	Path    string
	Deleted bool
}

// Base returns the last element of the path.
func (m *Mapping) Base() string { return filepath.Base(m.Path) }

// maxMappings limits how much is read of a hostile process; the kernel's own default limit is 65,530 (vm.max_map_count).
const maxMappings = 1 << 20

// Maps reads the mappings, sorted by address.
func (p *Process) Maps() ([]Mapping, error) {
	f, err := os.Open(p.dir() + "/maps")
	if err != nil {
		return nil, p.wrap("read maps of", err)
	}
	defer f.Close()
	maps, err := parseMaps(f)
	if err != nil {
		return nil, p.wrap("read maps of", err)
	}
	return maps, nil
}

func parseMaps(r io.Reader) ([]Mapping, error) {
	var out []Mapping
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), 1<<20) // a path is at most PATH_MAX, escaped at most four times as long
	for s.Scan() {
		m, err := parseMapping(s.Text())
		if err != nil {
			return nil, err
		}
		if len(out) == maxMappings {
			return nil, fmt.Errorf("more than %d mappings", maxMappings)
		}
		out = append(out, m)
	}
	return out, s.Err()
}

// parseMapping reads "start-end perms offset dev inode   path" (proc(5)).
func parseMapping(line string) (Mapping, error) {
	bad := func(what string) (Mapping, error) {
		return Mapping{}, fmt.Errorf("maps line %q: bad %s", line, what)
	}
	f := strings.SplitN(line, " ", 6)
	if len(f) < 5 {
		return bad("field count")
	}
	lo, hi, ok := strings.Cut(f[0], "-")
	if !ok || len(f[1]) < 4 {
		return bad("range or permissions")
	}
	m := Mapping{Exec: f[1][2] == 'x', Writable: f[1][1] == 'w', Shared: f[1][3] == 's', Device: f[3]}
	var err error
	if m.Start, err = strconv.ParseUint(lo, 16, 64); err != nil {
		return bad("start")
	}
	if m.End, err = strconv.ParseUint(hi, 16, 64); err != nil || m.End < m.Start {
		return bad("end")
	}
	if m.Offset, err = strconv.ParseUint(f[2], 16, 64); err != nil {
		return bad("offset")
	}
	if m.Inode, err = strconv.ParseUint(f[4], 10, 64); err != nil {
		return bad("inode")
	}
	if len(f) == 6 {
		m.Path, m.Deleted = strings.CutSuffix(strings.TrimLeft(f[5], " "), " (deleted)")
	}
	return m, nil
}

// OpenFile opens the mapped file for reading, even if it was deleted, replaced, or is in a container. It uses
// /proc/PID/map_files, which requires CAP_CHECKPOINT_RESTORE, or otherwise the path within the process's root
// directory, where the file must have the mapping's inode; the error reports when it does not.
func (p *Process) OpenFile(m *Mapping) (*os.File, error) {
	if m.Inode == 0 {
		return nil, fmt.Errorf("open mapping %x-%x of pid %d: no file behind it", m.Start, m.End, p.PID)
	}
	place, err := p.find(m)
	if err != nil {
		return nil, p.wrap("open "+m.Path+" of", err)
	}
	defer place.Close()
	f, err := reopen(place, m.Path)
	if err != nil {
		return nil, p.wrap("open "+m.Path+" of", err)
	}
	return f, nil
}

// mapFile returns the kernel's link to the mapped file. Unlike the lines of maps, its name has no leading zeros.
func (p *Process) mapFile(m *Mapping) string {
	return fmt.Sprintf("%s/map_files/%x-%x", p.dir(), m.Start, m.End)
}

// FileID distinguishes a file from others that had its path and inode number at another time, by its creation and write
// times. The zero value means that there is no file, or that it cannot be reached.
type FileID struct {
	Size    uint64
	Made    int64 // ns; 0 if the file system does not record it
	Written int64 // ns
	Device  uint64
	Inode   uint64
}
