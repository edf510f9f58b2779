// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// wheel is a Python wheel (PEP 427) without Python code: pip puts the program beside its own.
func wheel(t target) pack {
	return pack{
		file: func(r release) string { return "gputrace-" + r.python() + "-py3-none-" + platformTag(t) + ".whl" },
		build: func(r release, work string, shared []entry) ([]byte, error) {
			name := "gputrace-" + r.python()
			p, err := program(t, work, name+".data/scripts/gputrace")
			if err != nil {
				return nil, err
			}
			files := []entry{p}
			for _, f := range shared {
				if data, found := strings.CutPrefix(f.path, "usr/share/"); found && strings.HasPrefix(data, "man/") {
					files = append(files, entry{name + ".data/data/share/" + data, f.mode, f.data})
				}
				if license, found := strings.CutPrefix(f.path, documents); found && !strings.HasSuffix(license, ".md") {
					files = append(files, entry{name + ".dist-info/licenses/" + license, f.mode, f.data})
				}
			}
			files = append(files, metadata(r, t, name+".dist-info/", shared)...)
			return writeZip(append(files, record(name+".dist-info/RECORD", files)), r)
		},
	}
}

// platformTag says where a wheel can be installed. A static program runs on any Linux that Python supports; Go 1.26 needs macOS 12.
func platformTag(t target) string {
	machine := map[string]string{"linux/amd64": "x86_64", "linux/arm64": "aarch64", "darwin/amd64": "x86_64", "darwin/arm64": "arm64"}[t.os+"/"+t.arch]
	switch {
	case t.os == "darwin":
		return "macosx_12_0_" + machine
	case t.cgo:
		return fmt.Sprintf("manylinux_2_%d_%s", oldestGlibc, machine)
	}
	return "manylinux_2_17_" + machine + ".musllinux_1_1_" + machine
}

// metadata are the two files that pip reads.
func metadata(r release, t target, folder string, shared []entry) []entry {
	var readme []byte
	for _, f := range shared {
		if f.path == documents+"README.md" {
			readme = f.data
		}
	}
	about := fmt.Sprintf("Metadata-Version: 2.4\nName: gputrace\nVersion: %s\nSummary: %s\nLicense-Expression: %s\n"+
		"License-File: LICENSE\nLicense-File: GPL-2.0-only.txt\nLicense-File: BSD-2-Clause.txt\n"+
		"Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n%s", r.python(), summary, license, readme)
	tags := ""
	for platform := range strings.SplitSeq(platformTag(t), ".") {
		tags += "Tag: py3-none-" + platform + "\n"
	}
	generated := "Wheel-Version: 1.0\nGenerator: gputrace release\nRoot-Is-Purelib: false\n" + tags
	return []entry{{folder + "METADATA", 0o644, []byte(about)}, {folder + "WHEEL", 0o644, []byte(generated)}}
}

// record is the list of all files of a wheel with their digests; itself it lists without.
func record(name string, files []entry) entry {
	var text []byte
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		text = fmt.Appendf(text, "%s,sha256=%s,%d\n", f.path, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	return entry{name, 0o644, fmt.Appendf(text, "%s,,\n", name)}
}

func writeZip(files []entry, r release) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: r.time}
		h.ExternalAttrs = uint32(0o100000|f.mode) << 16 // the mode as Unix has it, which pip looks at
		h.CreatorVersion = 3 << 8                       // Unix
		body, err := w.CreateHeader(h)
		if err != nil {
			return nil, fmt.Errorf("begin %s: %w", f.path, err)
		}
		if _, err := body.Write(f.data); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end the wheel: %w", err)
	}
	return out.Bytes(), nil
}
