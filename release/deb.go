// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"slices"
	"strings"
)

const (
	summary     = "account for every byte of a running job's GPU memory, from outside"
	description = "gputrace attaches to a running PyTorch or CUDA job, which is neither changed nor stopped, and records which line of the\n" +
		"program allocated which GPU memory, and what holds it."
	maintainer = "The gputrace authors <maintainers@gputrace.invalid>"
	license    = "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"
)

// deb is a Debian package (deb(5)): an ar archive of a version, a control archive and the files.
func deb(t target) pack {
	return pack{
		file: func(r release) string { return "gputrace_" + r.distribution() + "_" + t.arch + ".deb" },
		build: func(r release, work string, shared []entry) ([]byte, error) {
			files, err := installed(t, work, shared)
			if err != nil {
				return nil, err
			}
			control, err := writeTar(control(r, t, files), r, true)
			if err != nil {
				return nil, err
			}
			data, err := writeTar(files, r, true)
			if err != nil {
				return nil, err
			}
			return ar(r, []entry{
				{"debian-binary", 0o644, []byte("2.0\n")},
				{"control.tar.gz", 0o644, compress(control)},
				{"data.tar.gz", 0o644, compress(data)},
			}), nil
		},
	}
}

// installed are the files of a package of a distribution.
func installed(t target, work string, shared []entry) ([]entry, error) {
	p, err := program(t, work, "usr/bin/gputrace")
	if err != nil {
		return nil, err
	}
	files := append([]entry{p}, shared...)
	for i, f := range files {
		if f.path == documents+"LICENSE" { // where Debian's policy wants it
			files[i].path = documents + "copyright"
		}
	}
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return files, nil
}

func control(r release, t target, files []entry) []entry {
	var size int
	var sums []byte
	for _, f := range files {
		size += (len(f.data) + 1023) / 1024
		sums = fmt.Appendf(sums, "%x  %s\n", md5.Sum(f.data), f.path)
	}
	depends := ""
	if t.cgo {
		depends = fmt.Sprintf("Depends: libc6 (>= 2.%d)\n", oldestGlibc)
	}
	text := fmt.Sprintf("Package: gputrace\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n%s"+
		"Section: devel\nPriority: optional\nDescription: %s\n %s\n",
		r.distribution(), t.arch, maintainer, size, depends, summary, strings.ReplaceAll(description, "\n", "\n "))
	return []entry{{"control", 0o644, []byte(text)}, {"md5sums", 0o644, sums}}
}

// ar writes the common format of archives (ar(5)): a header of 60 bytes, the file, and a byte to make the size even.
func ar(r release, files []entry) []byte {
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, f := range files {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", f.path, r.time.Unix(), 0, 0, fmt.Sprintf("100%o", f.mode), len(f.data))
		out.Write(f.data)
		if len(f.data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}
