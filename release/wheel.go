// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// pythonPackage is what "import gputrace" loads: it runs the program and returns what that prints.
//
//go:embed python/gputrace/*.py python/gputrace/py.typed
var pythonPackage embed.FS

// wheel is a Python wheel (PEP 427): pip puts the program beside Python's own, the package among the environment's, and the manual page and
// completions where the environment has its data.
func wheel(t target) pack {
	return pack{
		file: func(r release) string { return "gputrace-" + r.python() + "-py3-none-" + platformTag(t) + ".whl" },
		build: func(r release, work string, shared []entry) ([]byte, error) {
			name := "gputrace-" + r.python()
			p, err := program(t, work, name+".data/scripts/gputrace")
			if err != nil {
				return nil, err
			}
			files, err := packageFiles()
			if err != nil {
				return nil, err
			}
			files = append(files, p)
			for _, f := range shared {
				if data, found := strings.CutPrefix(f.path, "usr/share/"); found && !strings.HasPrefix(f.path, documents) {
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

// packageFiles are the modules of the Python package.
func packageFiles() ([]entry, error) {
	var out []entry
	names, err := fs.Glob(pythonPackage, "python/gputrace/*")
	if err != nil {
		return nil, fmt.Errorf("list the Python package: %w", err)
	}
	for _, name := range names {
		b, err := pythonPackage.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the Python package: %w", err)
		}
		out = append(out, entry{strings.TrimPrefix(name, "python/"), 0o644, b})
	}
	return out, nil
}

// platformTag says where a wheel can be installed. A static program runs on any Linux that Python supports; Go 1.26 needs macOS 12.
func platformTag(t target) string {
	machine := map[string]string{"linux/amd64": "x86_64", "linux/arm64": "aarch64", "darwin/amd64": "x86_64",
		"darwin/arm64": "arm64"}[t.os+"/"+t.arch]
	switch {
	case t.os == "darwin":
		return "macosx_12_0_" + machine
	case t.cgo:
		return fmt.Sprintf("manylinux_2_%d_%s", oldestGlibc, machine)
	}
	return "manylinux_2_17_" + machine + ".musllinux_1_1_" + machine
}

// metadata are the files that pip reads.
func metadata(r release, t target, folder string, shared []entry) []entry {
	var readme []byte
	for _, f := range shared {
		if f.path == documents+"README.md" {
			readme = f.data
		}
	}
	about := fmt.Sprintf("Metadata-Version: 2.4\nName: gputrace\nVersion: %s\nSummary: %s\nAuthor: The gputrace "+
		"authors\nLicense-Expression: %s\n"+
		"License-File: LICENSE\nLicense-File: GPL-2.0-only.txt\nLicense-File: BSD-2-Clause.txt\n%s"+
		"Requires-Python: >=3.8\n%s"+
		"Description-Content-Type: text/markdown\n\n%s", r.python(), summary, license, indexFields(), extraFields(),
		absoluteLinks(string(readme), r.commit))
	tags := ""
	for platform := range strings.SplitSeq(platformTag(t), ".") {
		tags += "Tag: py3-none-" + platform + "\n"
	}
	// pytest loads its plugins by this name.
	points := "[pytest11]\ngputrace = gputrace.pytest_plugin\n"
	generated := "Wheel-Version: 1.0\nGenerator: gputrace release\nRoot-Is-Purelib: false\n" + tags
	return []entry{
		{folder + "METADATA", 0o644, []byte(about)}, {folder + "WHEEL", 0o644, []byte(generated)},
		{folder + "entry_points.txt", 0o644, []byte(points)},
	}
}

// repository is where the sources are; links on an index page lead there.
const repository = "https://github.com/gputrace/gputrace"

// indexFields are the fields of METADATA by which an index of packages shows and finds a project.
func indexFields() string {
	var b strings.Builder
	for _, url := range [][2]string{
		{"Source", repository}, {"Documentation", repository + "/tree/main/docs"}, {"Changelog", repository + "/blob/main/CHANGELOG.md"},
		{"Issues", repository + "/issues"},
	} {
		fmt.Fprintf(&b, "Project-URL: %s, %s\n", url[0], url[1])
	}
	b.WriteString("Keywords: gpu,cuda,pytorch,memory,profiler,leak,out-of-memory,ebpf,pprof\n")
	for _, c := range []string{
		"Development Status :: 4 - Beta", "Environment :: Console", "Environment :: GPU :: NVIDIA CUDA", "Framework :: Pytest",
		"Intended Audience :: Developers", "Intended Audience :: Science/Research", "Operating System :: POSIX :: Linux",
		"Operating System :: MacOS", "Programming Language :: Go",
		"Programming Language :: Python :: 3", "Topic :: Scientific/Engineering :: Artificial Intelligence",
		"Topic :: Software Development :: Debuggers",
		"Topic :: System :: Monitoring", "Typing :: Typed",
	} {
		fmt.Fprintf(&b, "Classifier: %s\n", c)
	}
	return b.String()
}

// extras are the packages that a part of the package needs, by the name under which pip is asked for them.
var extras = []struct {
	name     string
	packages []string
}{
	{"pyarrow", []string{"pyarrow"}}, {"pandas", []string{"pyarrow", "pandas"}}, {"polars", []string{"polars"}},
	{"notebook", []string{"ipython"}},
	{"pytest", []string{"pytest>=8"}},
}

// extraFields are the fields of METADATA for extras.
func extraFields() string {
	var b strings.Builder
	for _, e := range extras {
		fmt.Fprintf(&b, "Provides-Extra: %s\n", e.name)
		for _, p := range e.packages {
			fmt.Fprintf(&b, "Requires-Dist: %s; extra == '%s'\n", p, e.name)
		}
	}
	return b.String()
}

var (
	pictureLink = regexp.MustCompile(`(!\[[^]]*\])\(([^):#][^):]*)\)`)
	pageLink    = regexp.MustCompile(`([^!]\[[^]]*\])\(([^):#][^):]*)\)`)
)

// absoluteLinks makes the links of a page in the repository lead to the repository as it was at a commit.
func absoluteLinks(page, commit string) string {
	page = pictureLink.ReplaceAllString(page, "$1("+repository+"/raw/"+commit+"/$2)")
	return pageLink.ReplaceAllString(page, "$1("+repository+"/blob/"+commit+"/$2)")
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
