// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/tracer/hook"
)

// API is one interface: the functions that one library exports.
type API struct {
	// Key names the interface in the file of names.
	Key string
	// Title is the name for people.
	Title string
	// Source is the first column of headers.txt: the packages that have the headers.
	Source string
	// Headers are base names, as patterns (package path).
	Headers []string
	// Library is the base name, as a pattern, of the library in the same package as the headers; empty: there is none.
	Library string
	// Undeclared are patterns of functions that the library exports and no header declares.
	Undeclared []string
	// Elsewhere are patterns of functions that the library has only on other systems.
	Elsewhere []string
	// Hooks is the library's name in package hook.
	Hooks *hook.Library
	// Names returns the functions of a group.
	Names func(*Group) string
}

// apis lists the interfaces in the order of the page.
var apis = []*API{
	{
		Key: "driver", Title: "CUDA driver", Source: "cuda", Hooks: hook.Driver,
		Headers: []string{"cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"},
		Names:   func(g *Group) string { return g.Driver },
	},
	{
		Key: "runtime", Title: "CUDA runtime", Source: "cuda", Hooks: hook.Runtime,
		Headers: []string{"cuda_runtime_api.h", "cuda_gl_interop.h", "cuda_egl_interop.h", "cuda_vdpau_interop.h"},
		// cuda_profiler_api.h is in another package; cudaSubgrid* (since 13.3) is in no header.
		Library: "libcudart.so.*", Undeclared: []string{"cudaProfiler*", "cudaSubgrid*"}, Elsewhere: []string{"cudaWGL*"},
		Names: func(g *Group) string { return g.Runtime },
	},
	{
		Key: "hip", Title: "HIP", Source: "hip", Hooks: hook.HIP,
		Headers: []string{"hip_runtime_api.h", "amd_hip_runtime_pt_api.h"},
		Names:   func(g *Group) string { return g.HIP },
	},
	{
		Key: "levelzero", Title: "Level Zero", Source: "levelzero", Hooks: hook.LevelZero,
		Headers: []string{"ze_api.h"},
		Names:   func(g *Group) string { return g.LevelZero },
	},
}

// Package is a row of headers.txt: the source of one version of an interface's headers.
type Package struct {
	// Source and Version identify the headers.
	Source, Version string
	// From is "pypi", or the Debian suite.
	From string
	// Name and Release are the package's.
	Name, Release string
	// SHA256 is the digest of the file, in hexadecimal.
	SHA256 string
}

//go:embed headers.txt
var packagesText string

// packages reads headers.txt. Its rows are in the order of the versions.
func packages() ([]Package, error) {
	var out []Package
	for line := range strings.Lines(packagesText) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 6 {
			return nil, fmt.Errorf("headers.txt: line %q has %d fields, want 6", strings.TrimSpace(line), len(f))
		}
		out = append(out, Package{f[0], f[1], f[2], f[3], f[4], f[5]})
	}
	return out, nil
}

// versions lists the versions of an interface, oldest first.
func (a *API) versions(all []Package) []string {
	var out []string
	for _, p := range all {
		if p.Source == a.Source {
			out = append(out, p.Version)
		}
	}
	return out
}

// find returns the path of the package's file in a folder. The error wraps fs.ErrNotExist when there is none.
func (p Package) find(dir string) (string, error) {
	pattern := p.Name + "_" + p.Release + "_*.deb"
	if p.From == "pypi" {
		pattern = strings.ReplaceAll(p.Name, "-", "_") + "-" + p.Release + "-*.whl"
	}
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf("%s in %s: %w", pattern, dir, fs.ErrNotExist)
	}
	return files[0], nil
}

// declared reads the headers of one version and their library, and returns what each interface declares or exports.
func (p Package) declared(file string) (map[*API][]Declaration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, fmt.Errorf("%s: digest %x, headers.txt has %s: delete the file and fetch it again", file, sum, p.SHA256)
	}
	found := map[*API]*content{}
	take := func(name string, r io.Reader) error {
		for _, a := range apis {
			if a.Source != p.Source {
				continue
			}
			if found[a] == nil {
				found[a] = &content{}
			}
			if err := found[a].read(a, path.Base(name), r); err != nil {
				return fmt.Errorf("%s: %s: %w", file, name, err)
			}
		}
		return nil
	}
	if p.From == "pypi" {
		err = eachInWheel(data, take)
	} else {
		err = eachInDeb(file, take)
	}
	out := map[*API][]Declaration{}
	for a, c := range found {
		err = errors.Join(err, c.compare(a))
		out[a] = slices.Concat(c.declared, c.exported)
	}
	if err == nil && len(out) == 0 {
		err = errors.New("no files")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return out, nil
}

// content is the part of a package for one interface.
type content struct {
	declared, exported []Declaration
	hasLibrary         bool
}

// read adds the functions of one file, if it is one of the interface's.
func (c *content) read(a *API, base string, r io.Reader) error {
	isLibrary, _ := path.Match(a.Library, base)
	if !isLibrary && !slices.Contains(a.Headers, base) {
		return nil
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if !isLibrary {
		c.declared = append(c.declared, Scan(string(data))...)
		return nil
	}
	c.hasLibrary = true
	c.exported, err = exported(data)
	return err
}

// compare compares the headers with the library, to prove that they are read as a compiler reads them.
func (c *content) compare(a *API) error {
	var wrong []string
	for _, d := range c.declared {
		if c.hasLibrary && !slices.ContainsFunc(c.exported, d.named) && !anyMatches(a.Elsewhere, d.Name) {
			wrong = append(wrong, d.Name+" is declared and not exported")
		}
	}
	for _, e := range c.exported {
		if !slices.ContainsFunc(c.declared, e.named) && !anyMatches(a.Undeclared, e.Name) {
			wrong = append(wrong, e.Name+" is exported and not declared")
		}
	}
	switch {
	case len(c.declared) == 0:
		return fmt.Errorf("%s: no declarations found", a.Title)
	case a.Library != "" && !c.hasLibrary:
		return fmt.Errorf("%s: no %s found", a.Title, a.Library)
	case len(wrong) > 0:
		return fmt.Errorf("%s: headers and library differ: %s", a.Title, strings.Join(wrong, "; "))
	}
	return nil
}

func anyMatches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, name); return ok })
}

func (d Declaration) named(other Declaration) bool { return d.Name == other.Name }

// exported lists the functions that a library exports.
func exported(data []byte) ([]Declaration, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	var out []Declaration
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC && function.MatchString(s.Name) {
			out = append(out, Declaration{Name: s.Name})
		}
	}
	return out, nil
}

func eachInWheel(data []byte, take func(string, io.Reader) error) error {
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	for _, f := range r.File {
		content, err := f.Open()
		if err != nil {
			return err
		}
		err = take(f.Name, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return nil
}

func eachInDeb(file string, take func(string, io.Reader) error) error {
	data, err := exec.Command("dpkg-deb", "--fsys-tarfile", file).Output()
	if err != nil {
		return fmt.Errorf("dpkg-deb --fsys-tarfile %s: %w", file, err)
	}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if h.Typeflag == tar.TypeReg {
			if err := take(h.Name, r); err != nil {
				return err
			}
		}
	}
}
