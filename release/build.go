// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// target is a program that is built.
type target struct {
	os, arch string
	cgo      bool // with NVML, the driver's own figures; it needs glibc. Without cgo a program is static
}

// targets are all programs. On Linux the program traces, elsewhere it shows recordings.
var targets = []target{
	{"linux", "amd64", true},
	{"linux", "amd64", false},
	{"linux", "arm64", false},
	{"darwin", "amd64", false},
	{"darwin", "arm64", false},
}

var (
	tracer = targets[0]
	static = targets[1]
	arm64  = targets[2]
)

func (t target) name() string {
	if t.os == "linux" && t.arch == "amd64" && !t.cgo {
		return "linux_amd64_static"
	}
	return t.os + "_" + t.arch
}

// path is where the program is built.
func (t target) path(work string) string { return filepath.Join(work, t.name(), "gputrace") }

// build compiles the program. Nothing of this machine gets into it: no paths, no build IDs, no version control of its own.
func (t target) build(ctx context.Context, source, work string, r release) error {
	flags := "-s -w -buildid= -X main.release=" + r.version + " -X main.releaseDate=" + r.time.Format("2006-01-02") +
		" -X main.releaseCommit=" + r.commit
	cgo := "0"
	if t.cgo {
		cgo = "1"
		flags += " -extldflags=-Wl,--build-id=none"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags,
		"-o", t.path(work), "./cmd/gputrace")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOOS="+t.os, "GOARCH="+t.arch, "CGO_ENABLED="+cgo, "GOFLAGS=", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if !t.cgo {
		return nil
	}
	minor, err := glibc(t.path(work))
	if err == nil && minor > oldestGlibc {
		err = fmt.Errorf("the program needs glibc 2.%d, its packages ask for 2.%d", minor, oldestGlibc)
	}
	return err
}

// oldestGlibc is the minor version of glibc 2 that all packages of the tracer ask for. In 2.34, the functions of libpthread and libdl
// moved into libc, and a program that is linked with a later one refers to them there.
const oldestGlibc = 34

// glibc is the minor version of glibc 2 that a program needs; 0 for a static one.
func glibc(program string) (int, error) {
	f, err := elf.Open(program)
	if err != nil {
		return 0, fmt.Errorf("open the program: %w", err)
	}
	defer f.Close()
	if f.Section(".gnu.version_r") == nil {
		return 0, nil
	}
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return 0, fmt.Errorf("read the versions that %s needs: %w", program, err)
	}
	newest := 0
	for _, library := range needs {
		for _, need := range library.Needs {
			minor, found := strings.CutPrefix(need.Dep, "GLIBC_2.")
			if !found {
				continue
			}
			minor, _, _ = strings.Cut(minor, ".")
			n, err := strconv.Atoi(minor)
			if err != nil {
				return 0, fmt.Errorf("read the version %q that %s needs: %w", need.Dep, program, err)
			}
			newest = max(newest, n)
		}
	}
	return newest, nil
}
