// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export"
)

// viewer is a gputrace that is asked about recordings.
type viewer struct {
	name     string
	run      []string // the command before the arguments
	emulated bool
}

// listed is what is looked at of a package of go list.
type listed struct {
	Dir, ImportPath   string
	Standard          bool
	GoFiles, CgoFiles []string
}

// files are the source files of packages of gputrace on a system, by folder.
func files(t *testing.T, goos, arch string, packages ...string) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,Standard,GoFiles,CgoFiles"}, packages...)...)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	found := map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return found
		}
		require.NoError(t, err)
		if !p.Standard && strings.HasPrefix(p.ImportPath, "github.com/gputrace/") {
			found[p.Dir] = append(p.GoFiles, p.CgoFiles...)
		}
	}
}

// needsDarwin are files whose functions are in no other system's library. What has their place elsewhere stays.
var needsDarwin = []string{"darwin/procargs/sysctl.go"}

// overlay is a file for go build -overlay, by which a program for Linux is made of the files that one for macOS is made of.
func overlay(t *testing.T, arch string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	linux, mac := files(t, "linux", arch, "../..."), files(t, "darwin", arch, "-deps", "../cmd/gputrace")
	require.Greater(t, len(mac), 50, "packages")
	replace := map[string]string{}
	dir, changed := t.TempDir(), 0
	for folder, names := range mac {
		for _, name := range names {
			place, err := filepath.Rel(root, filepath.Join(folder, name))
			require.NoError(t, err)
			if slices.Contains(linux[folder], name) || slices.Contains(needsDarwin, place) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, name))
			require.NoError(t, err)
			i := bytes.Index(text, []byte("//go:build "))
			require.GreaterOrEqual(t, i, 0, "%s is for macOS and has no constraint", place)
			end := i + bytes.IndexByte(text[i:], '\n')
			changed++
			file := filepath.Join(dir, fmt.Sprint(changed, ".go"))
			require.NoError(t, os.WriteFile(file, slices.Concat(text[:i], text[end:]), 0o644))
			replace[filepath.Join(folder, name)] = file
		}
		for _, name := range linux[folder] {
			kept := slices.ContainsFunc(needsDarwin, func(f string) bool { return filepath.Join(root, filepath.Dir(f)) == folder })
			if !slices.Contains(names, name) && !kept {
				replace[filepath.Join(folder, name)] = ""
			}
		}
	}
	require.NotZero(t, changed)
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, text, 0o644))
	return file
}

// viewers are gputrace for Linux; of the files of macOS's; and that again for arm64, emulated.
func viewers(t *testing.T) []viewer {
	t.Helper()
	dir := t.TempDir()
	build := func(name, arch string, args ...string) viewer {
		out := filepath.Join(dir, name)
		cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", out}, append(args, "../cmd/gputrace")...)...)
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
		return viewer{name: name, run: []string{out}}
	}
	mac, arm := build("mac", "amd64", "-overlay", overlay(t, "amd64")), build("mac-arm64", "arm64", "-overlay", overlay(t, "arm64"))
	arm.run, arm.emulated = append([]string{"qemu-aarch64-static"}, arm.run...), true
	return []viewer{build("linux", "amd64"), mac, arm}
}

// answer is all that a command gives: its exit code and what it prints, and what it writes.
func (v *viewer) answer(t *testing.T, args []string) (said, wrote string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "OUT", file)
	}
	cmd := exec.Command(v.run[0], append(slices.Clone(v.run[1:]), args...)...)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit, "%s", args)
	}
	written, err := os.ReadFile(file)
	defer os.Remove(file) // they are many, and large
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	if bytes.HasPrefix(written, []byte("PAR1")) {
		written = rows(t, written)
	}
	require.NotContains(t, string(text), "panic", "%s", args)
	return fmt.Sprint(cmd.ProcessState.ExitCode(), " ", strings.ReplaceAll(string(text), file, "OUT")), string(written)
}

// rows are what a Parquet file says: its library packs the same values otherwise on each processor.
func rows(t *testing.T, file []byte) []byte {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	out := fmt.Appendln(nil, f.Schema(), f.NumRows())
	for _, key := range f.Metadata().KeyValueMetadata {
		out = fmt.Appendln(out, key.Key, key.Value)
	}
	for _, group := range f.RowGroups() {
		r := group.Rows()
		buf := make([]parquet.Row, 1024)
		for err = nil; err == nil; {
			var n int
			n, err = r.ReadRows(buf)
			for _, row := range buf[:n] {
				out = fmt.Appendf(out, "%+v\n", row)
			}
		}
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, r.Close())
	}
	return out
}

// questions are the commands that answer from recordings.
func questions(recording, other string) [][]string {
	asked := [][]string{
		{"report"}, {"report", "-v"}, {"report", "--at", "peak", "--by", "function"}, {"report", "--by", "phase"}, {"report", "--by", "step"},
		{"report", "--by", "holder"},
		{"summary"}, {"summary", "--json"}, {"leaks"}, {"leaks", "--json"}, {"oom"}, {"oom", "--json"}, {"fragments", "--json"},
		{"check", "--max-peak", "1GiB", "--max-growth-per-step", "0", "--no-leaks", "--no-oom", "--json"}, {"check", "--baseline", other},
		{"top", "--once", "--json"}, {"whatif", "--json"}, {"whatif", "--json", "--device-memory", "2GiB", "--expandable-segments"},
	}
	for _, format := range []string{"text", "json", "html", "pprof"} {
		asked = append(asked, []string{"diff", other, "--format", format, "-o", "OUT"})
	}
	for i := range export.Formats {
		if export.Formats[i].Name == "html" { // two runs of one program differ in its tree
			continue
		}
		asked = append(asked, []string{"export", "-f", export.Formats[i].Name, "-o", "OUT"})
	}
	for i := range asked {
		asked[i] = slices.Insert(asked[i], 1, recording)
	}
	return asked
}

// TestViewersAgree: what gputrace for macOS is made of answers to the byte as on Linux (Parquet: to the value, pictures: to the eye): of
// recordings of Linux of the first and the last version of the format, and of one of the shim; or of those that GPUTRACE_RECORDINGS has, a
// list of files. On the processor of a Mac, which is emulated here and takes twenty times as long, it is asked about the last of them.
func TestViewersAgree(t *testing.T) {
	recordings, err := filepath.Glob("../cmd/gputrace/testdata/recording-*.gputrace")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(recordings), 5)
	recordings = []string{recordings[0], recordings[len(recordings)-1], recordJob(t, "30", "5000000", "oom").trace}
	if more := filepath.SplitList(os.Getenv("GPUTRACE_RECORDINGS")); len(more) > 0 {
		recordings = more
	}
	all := viewers(t)
	for i, r := range recordings {
		other := recordings[(i+1)%len(recordings)]
		for k := range questions(r, other) {
			said, wrote := all[0].answer(t, questions(r, other)[k])
			for _, v := range all[1:] {
				if v.emulated && i < len(recordings)-1 {
					continue
				}
				saidThere, wroteThere := v.answer(t, questions(r, other)[k])
				require.Equal(t, said, saidThere, "%s: %q", v.name, questions(r, other)[k])
				require.True(t, wrote == wroteThere || samePicture(t, wrote, wroteThere), "%s: %q: %s", v.name, questions(r, other)[k],
					difference(wrote, wroteThere))
			}
		}
	}
}

// samePicture reports whether two files are pictures that nobody can tell apart: arm64 rounds a product and a sum once, so that the edge of
// a line may be another shade, by 1 of 255.
func samePicture(t *testing.T, a, b string) bool {
	t.Helper()
	one, err := png.Decode(strings.NewReader(a))
	if err != nil {
		return false
	}
	other, err := png.Decode(strings.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, one.Bounds(), other.Bounds())
	for y := range one.Bounds().Dy() {
		for x := range one.Bounds().Dx() {
			if !near(one.At(x, y), other.At(x, y)) {
				return false
			}
		}
	}
	return true
}

func near(a, b color.Color) bool {
	r, g, bl, al := a.RGBA()
	r2, g2, bl2, al2 := b.RGBA()
	for _, d := range []int{int(r) - int(r2), int(g) - int(g2), int(bl) - int(bl2), int(al) - int(al2)} {
		if d < -257 || d > 257 {
			return false
		}
	}
	return true
}

// difference is where two answers begin to differ.
func difference(want, got string) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	part := func(s string) string { return s[max(0, i-200):min(len(s), i+200)] }
	return fmt.Sprintf("at byte %d of %d and %d:\n%q\n%q", i, len(want), len(got), part(want), part(got))
}
