// SPDX-License-Identifier: Apache-2.0

// Package elftest has what tests of ELF objects share: objects to test on, and the output of other tools about them.
package elftest

import (
	"bufio"
	"bytes"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CallC has frames of each usual form; its callee is elsewhere, so that the stack must be set up for a call.
const CallC = `
void use(void *);
int plain(int n) { char b[40]; use(b); return n + b[n]; }
int dynamic(int n) { char b[n]; use(b); return b[0]; }
int realigned(int n) { char b[64] __attribute__((aligned(64))); use(b); return n + b[n]; }
int both(int n, int a, int c, int d, int e, int f, int g) {
	char b[64] __attribute__((aligned(64))), v[n];
	use(b); use(v); return g + b[n] + v[0];
}
`

// Build compiles a shared object from C or assembler text and returns its path.
func Build(t testing.TB, name, text string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	src, lib := filepath.Join(dir, name), filepath.Join(dir, name+".so")
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-nostartfiles", "-Wl,--build-id", "-o", lib, src}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return lib
}

// TorchLib names a folder with PyTorch's libraries; the tests and benchmarks then take those too.
const TorchLib = "GPUTRACE_TORCH_LIB"

// Libraries are real files to test on: what every build machine has, and PyTorch's when asked for.
func Libraries(t testing.TB) []string {
	t.Helper()
	paths := []string{
		strings.TrimSpace(Output(t, "gcc", "-print-file-name=libc.so.6")),
		strings.TrimSpace(Output(t, "gcc", "-print-file-name=libstdc++.so.6")),
		PythonLibrary(t),
	}
	return append(paths, TorchLibraries(t)...)
}

// RealLibraries are libraries and those of the PyTorch that the tests run on; without the latter in a short test.
func RealLibraries(t testing.TB) []string {
	t.Helper()
	paths := Libraries(t)
	if testing.Short() || os.Getenv(TorchLib) != "" {
		return paths
	}
	return append(paths, librariesIn(filepath.Join(Setup(t, "site"), "torch", "lib"))...)
}

// Setup is a folder that testdata/setup.sh has made: "site" has the packages of the PyTorch that the tests run on, "standin" the
// libraries of the stand-in for CUDA.
func Setup(t testing.TB, what string) string {
	t.Helper()
	root := strings.TrimSpace(Output(t, "go", "list", "-m", "-f", "{{.Dir}}"))
	return strings.TrimSpace(Output(t, filepath.Join(root, "testdata", "setup.sh"), "--print", what))
}

// TorchLibraries are PyTorch's, when asked for.
func TorchLibraries(t testing.TB) (paths []string) {
	t.Helper()
	if dir := os.Getenv(TorchLib); dir != "" {
		return librariesIn(dir)
	}
	return nil
}

func librariesIn(dir string) (paths []string) {
	for _, name := range []string{"libc10.so", "libc10_cuda.so", "libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda.so"} {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// PythonLibrary is libpython, or the interpreter where that is in it.
func PythonLibrary(t testing.TB) string {
	t.Helper()
	out := Output(t, "python3", "-c", "import sys, sysconfig as s; v = s.get_config_var\n"+
		"print(v('LIBDIR'), v('INSTSONAME'), sys.executable, sep='\\n')")
	f := strings.Split(strings.TrimSpace(out), "\n")
	if lib := filepath.Join(f[0], f[1]); strings.Contains(f[1], ".so") {
		if _, err := os.Stat(lib); err == nil {
			return lib
		}
	}
	exe, err := filepath.EvalSymlinks(f[2])
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// Output is what a program prints.
func Output(t testing.TB, name string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

// Lines runs a program and hands out the lines that it prints.
func Lines(t testing.TB, line func(string), name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		line(s.Text())
	}
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || s.Err() != nil {
		t.Fatalf("%s %s: %v, %v", name, strings.Join(args, " "), err, s.Err())
	}
}

// Symbol is the link-time address of a symbol.
func Symbol(t testing.TB, path, name string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].Name == name {
			return all[i].Value
		}
	}
	t.Fatalf("%s has no symbol %s", path, name)
	return 0
}

// Written is a file with some bytes.
func Written(t testing.TB, name string, b []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// Functions is the exported functions of an object's code; a test fails on one with hardly any.
func Functions(t testing.TB, f *elf.File) []elf.Symbol {
	t.Helper()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	text := f.Section(".text")
	var out []elf.Symbol
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Value >= text.Addr && s.Value < text.Addr+text.Size {
			out = append(out, s)
		}
	}
	if len(out) <= 100 {
		t.Fatalf("%d functions: more than 100 are expected", len(out))
	}
	return out
}
