// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pack is one file of a release.
type pack struct {
	file  func(release) string
	build func(r release, work string, shared []entry) ([]byte, error)
}

// packages are all files of a release but the checksums.
func packages() []pack {
	var out []pack
	for _, t := range targets {
		out = append(out, archive(t), wheel(t)) // of two for one processor, pip takes that for the newer glibc where it fits
	}
	return append(out, deb(tracer), rpm(tracer), deb(arm64), rpm(arm64), image(static, arm64))
}

func (p pack) write(name string, r release, work string, shared []entry) error {
	b, err := p.build(r, work, shared)
	if err != nil {
		return err
	}
	return os.WriteFile(name, b, 0o644)
}

// archive is a .tar.gz with one folder: the program, and the documents, the manual page and completions beside it.
func archive(t target) pack {
	folder := func(r release) string { return "gputrace_" + r.version + "_" + t.name() }
	return pack{
		file: func(r release) string { return folder(r) + ".tar.gz" },
		build: func(r release, work string, shared []entry) ([]byte, error) {
			p, err := program(t, work, "gputrace")
			if err != nil {
				return nil, err
			}
			files := []entry{p}
			for _, f := range shared {
				f.path = strings.TrimPrefix(f.path, documents)
				f.path = strings.TrimPrefix(f.path, "usr/share/")
				files = append(files, f)
			}
			for i := range files {
				files[i].path = path.Join(folder(r), files[i].path)
			}
			b, err := writeTar(files, r, false)
			return compress(b), err
		},
	}
}

// writeTar writes files and, with folders, the folders above them; all belong to root and have the time of the release.
func writeTar(files []entry, r release, folders bool) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	written := map[string]bool{".": true}
	for _, f := range files {
		if folders {
			for _, dir := range parents(f.path) {
				if !written[dir] {
					written[dir] = true
					h := tar.Header{Typeflag: tar.TypeDir, Name: "./" + dir + "/", Mode: 0o755, ModTime: r.time, Uname: "root", Gname: "root"}
					if err := w.WriteHeader(&h); err != nil {
						return nil, fmt.Errorf("write the folder %s: %w", dir, err)
					}
				}
			}
			f.path = "./" + f.path
		}
		h := tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.data)), ModTime: r.time, Uname: "root",
			Gname: "root"}
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.path, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end the archive: %w", err)
	}
	return out.Bytes(), nil
}

// parents are the folders above a path, the outermost first.
func parents(name string) []string {
	var out []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		out = append(out, dir)
	}
	slices.Reverse(out)
	return out
}

// writeSums writes SHA256SUMS, for sha256sum --check.
func writeSums(out string) error {
	names, err := os.ReadDir(out)
	if err != nil {
		return fmt.Errorf("list the output: %w", err)
	}
	var text []byte
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(out, n.Name()))
		if err != nil {
			return fmt.Errorf("read a package: %w", err)
		}
		text = fmt.Appendf(text, "%x  %s\n", sha256.Sum256(b), n.Name())
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), text, 0o644)
}
