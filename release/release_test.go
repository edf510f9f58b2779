// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var moment = time.Date(2026, 11, 23, 5, 46, 29, 0, time.UTC)

// TestVersions: what the packagers' own tools must sort before and after.
func TestVersions(t *testing.T) {
	const commit = "a7ff5ef6f8c4a7ff5ef6f8c4a7ff5ef6f8c4a7ff"
	tests := map[string]struct{ distribution, python string }{
		"1.2.3":                               {"1.2.3", "1.2.3"},
		"1.3.0-rc.1":                          {"1.3.0~rc.1", "1.3.0rc1"},
		"1.3.0-beta.2":                        {"1.3.0~beta.2", "1.3.0b2"},
		"0.0.0-20261123054629-a7ff5ef6f8c4":   {"0.0.0~20261123054629.a7ff5ef6f8c4", "0.0.0.dev20261123054629+a7ff5ef6f8c4"},
		"0.1.1-0.20261123054629-a7ff5ef6f8c4": {"0.1.1~0.20261123054629.a7ff5ef6f8c4", "0.1.1.dev20261123054629+a7ff5ef6f8c4"},
	}
	for version, test := range tests {
		r := release{version: version, commit: commit, time: moment}
		require.Equal(t, test.distribution, r.distribution())
		require.Equal(t, test.python, r.python())
	}
}

// TestVersionOfChanges: the first section is a version, or what comes after one.
func TestVersionOfChanges(t *testing.T) {
	for changes, want := range map[string]string{
		"# Changes\n\n## 0.1.0 (today)\n\n- a\n\n## 0.0.9\n":  "0.1.0",
		"# Changes\n\n## Unreleased\n\n- a\n\n## 1.2.9 (x)\n": "1.2.10-0.2026-abc",
		"# Changes\n\n## Unreleased\n":                        "0.0.0-2026-abc",
		"":                                                    "0.0.0-2026-abc",
	} {
		require.Equal(t, want, versionOf(changes, "2026-abc"), changes)
	}
	own, err := os.ReadFile("../CHANGELOG.md")
	require.NoError(t, err)
	require.Regexp(t, `^\d+\.\d+\.\d+(-0\.2026-abc)?$`, versionOf(string(own), "2026-abc"), "the change log has no version")
}

// TestChangedCheckout: what nobody could build again is not released.
func TestChangedCheckout(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{"init -q", "config user.name test", "config user.email test@localhost"} {
		require.NoError(t, exec.Command("git", append([]string{"-C", dir}, strings.Fields(args)...)...).Run(), args)
	}
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("a"), 0o644))
	require.NoError(t, exec.Command("git", "-C", dir, "add", "file").Run())
	require.NoError(t, exec.Command("git", "-C", dir, "commit", "-q", "-m", "test").Run())

	r, err := identify(t.Context(), dir, "")
	require.NoError(t, err)
	require.Regexp(t, `^0\.0\.0-\d{14}-[0-9a-f]{12}$`, r.version)
	_, err = identify(t.Context(), dir, "v1")
	require.ErrorContains(t, err, "not a version")

	require.NoError(t, exec.Command("git", "-C", dir, "tag", "v1.2.3").Run())
	r, err = identify(t.Context(), dir, "")
	require.NoError(t, err)
	require.Equal(t, "1.2.3", r.version)

	require.NoError(t, os.WriteFile(file, []byte("b"), 0o644))
	_, err = identify(t.Context(), dir, "1.2.3")
	require.ErrorContains(t, err, "not committed")
}

// TestArchives: an archive is the same whatever the order of its files, and they belong to root.
func TestArchives(t *testing.T) {
	r := release{version: "1.2.3", time: moment}
	files := []entry{{"usr/bin/a", 0o755, []byte("program")}, {"etc/b", 0o644, nil}}
	first, err := writeTar(files, r, true)
	require.NoError(t, err)
	second, err := writeTar([]entry{files[1], files[0]}, r, true)
	require.NoError(t, err)
	require.Equal(t, first, second)

	var names []string
	reader := tar.NewReader(bytes.NewReader(first))
	for {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, []any{"root", "root", 0, 0}, []any{h.Uname, h.Gname, h.Uid, h.Gid})
		require.Equal(t, moment, h.ModTime.UTC())
		names = append(names, h.Name)
	}
	require.Equal(t, []string{"./etc/", "./etc/b", "./usr/", "./usr/bin/", "./usr/bin/a"}, names)
}

// TestCommonArchive: ar(1) reads what ar writes, also a file of an odd size.
func TestCommonArchive(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.ar")
	require.NoError(t, os.WriteFile(name, ar(release{time: moment}, []entry{{"odd", 0o644, []byte("abc")}, {"even", 0o644, []byte("de")}}),
		0o644))
	out, err := exec.Command("ar", "p", name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "abcde", string(out))
}

// TestWheelRecord: each file of a wheel is listed with its size, and a program can be executed once it is installed.
func TestWheelRecord(t *testing.T) {
	files := []entry{{"x.data/scripts/x", 0o755, []byte("abc")}}
	files = append(files, record("x.dist-info/RECORD", files))
	require.Equal(t, "x.data/scripts/x,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\nx.dist-info/RECORD,,\n", string(files[1].data))
	b, err := writeZip(files, release{time: moment})
	require.NoError(t, err)
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), z.File[0].Mode())
}

// TestOneGlibc: the packages of the tracer ask for one glibc, and pip has a program for what is older and for musl.
func TestOneGlibc(t *testing.T) {
	require.Equal(t, "manylinux_2_34_x86_64", platformTag(tracer))
	require.Equal(t, "manylinux_2_17_x86_64.musllinux_1_1_x86_64", platformTag(static))
	require.Contains(t, string(control(release{version: "1.2.3"}, tracer, nil)[0].data), "\nDepends: libc6 (>= 2.34)\n")
	var wheels []string
	for _, p := range packages() {
		if name := p.file(release{version: "1.2.3"}); strings.HasSuffix(name, "x86_64.whl") && strings.Contains(name, "linux") {
			wheels = append(wheels, name)
		}
	}
	require.Len(t, wheels, 2)
}

// TestLinks: on an index of packages a page's own links lead to the repository; others and anchors stay.
func TestLinks(t *testing.T) {
	const page = "![page](docs/a.png) [docs](docs/README.md), [here](#cost), [there](https://example.org/x), [part](docs/b.md#c)"
	require.Equal(t, "![page]("+repository+"/raw/abc/docs/a.png) [docs]("+repository+"/blob/abc/docs/README.md), [here](#cost), "+
		"[there](https://example.org/x), [part]("+
		repository+"/blob/abc/docs/b.md#c)", absoluteLinks(page, "abc"))
}

// TestPython installs a wheel with pip in a new environment, where the package answers as the program does.
func TestPython(t *testing.T) {
	work := t.TempDir()
	own, err := ownTarget()
	require.NoError(t, err)
	build := exec.Command("go", "build", "-o", own.path(work), "./cmd/gputrace")
	build.Dir = ".."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	shared, err := sharedFiles(t.Context(), "..", work)
	require.NoError(t, err)
	p := wheel(own)
	r := release{version: "1.2.3", commit: strings.Repeat("a", 40), time: moment}
	file := filepath.Join(work, p.file(r))
	require.NoError(t, p.write(file, r, work, shared))

	python := filepath.Join(work, "venv", "bin", "python")
	command := func(words ...string) string {
		t.Helper()
		out, err := exec.Command(words[0], words[1:]...).Output()
		require.NoError(t, err, "%s", words)
		return strings.TrimSpace(string(out))
	}
	command("python3", "-m", "venv", filepath.Join(work, "venv"))
	command(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", file)
	installed := filepath.Join(work, "venv", "bin", "gputrace")
	require.Equal(t, command(installed, "version"), command(python, "-m", "gputrace", "version"))
	for _, data := range []string{"man/man1/gputrace.1.gz", "bash-completion/completions/gputrace"} {
		require.FileExists(t, filepath.Join(work, "venv", "share", data))
	}
	require.Contains(t, command(python, "-m", "pip", "show", "gputrace", "--verbose"), "Topic :: System :: Monitoring")

	recording := filepath.Join("..", "cmd", "gputrace", "testdata", "recording-1.0.gputrace")
	const ask = `import json, sys, gputrace
r = gputrace.open(sys.argv[1])
same = (r.verdict, r.sentence) == (r.answer["verdict"], r.answer["sentence"])
print(json.dumps([r.leaks, same, r.out_of_memory["format"], r.blocks(at="peak", by="line")]))
try:
    gputrace.open("no such file")
except gputrace.Error as error:
    assert error.code == 1 and "no such file" in str(error), error
else:
    raise SystemExit("no error")`
	var answers []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(command(python, "-c", ask, recording)), &answers))
	require.JSONEq(t, command(installed, "leaks", recording, "--json"), string(answers[0]))
	points := command(python, "-c", "import importlib.metadata as m; print([e.value for e in m.entry_points(group='pytest11')])")
	require.Equal(t, "['gputrace.pytest_plugin']", points)
	require.JSONEq(t, `[true, "gputrace oom"]`, "["+string(answers[1])+","+string(answers[2])+"]")
	var rows []map[string]any
	require.NoError(t, json.Unmarshal(answers[3], &rows))
	table := strings.Split(command(installed, "export", recording, "-f", "csv", "--at", "peak", "--by", "line", "-o", "-"), "\n")
	require.NotEmpty(t, rows)
	require.Len(t, rows, len(table)-1)
	require.Contains(t, table[1], fmt.Sprintf(",%.0f,", rows[0]["bytes"]))
}
