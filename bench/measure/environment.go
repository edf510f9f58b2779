// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pyloopSource calls the allocator's report from Python; see the file.
//
//go:embed pyloop.py
var pyloopSource []byte

// environment is what all measurements share.
type environment struct {
	root     string // of the repository
	python   string // of testdata's virtual environment
	programs string // folder of the C test programs
	tmp      string // removed at the end
	cache    string // unwind tables, filled by the first attach
	gputrace string // the program, just built
	files    int    // handed out by unique
}

func newEnvironment() (*environment, error) {
	mod, err := output("go", "env", "GOMOD")
	if err != nil {
		return nil, err
	}
	e := &environment{root: filepath.Dir(mod)}
	setup := filepath.Join(e.root, "testdata", "setup.sh")
	if e.python, err = output(setup, "--print", "python"); err != nil {
		return nil, err
	}
	if e.programs, err = output(setup, "--print", "programs"); err != nil {
		return nil, err
	}
	if e.tmp, err = os.MkdirTemp("", "gputrace-bench-"); err != nil {
		return nil, fmt.Errorf("make a working folder: %w", err)
	}
	e.cache, e.gputrace = filepath.Join(e.tmp, "cache"), filepath.Join(e.tmp, "gputrace")
	if err := os.WriteFile(e.path("pyloop.py"), pyloopSource, 0o644); err != nil {
		return nil, fmt.Errorf("write the Python loop: %w", err)
	}
	build := exec.Command("go", "build", "-o", e.gputrace, "./cmd/gputrace")
	build.Dir, build.Stderr = e.root, os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build gputrace: %w", err)
	}
	return e, nil
}

func (e *environment) close() { _ = os.RemoveAll(e.tmp) }

// path names a file in the working folder.
func (e *environment) path(name string) string { return filepath.Join(e.tmp, name) }

// unique names a file that nothing has written yet.
func (e *environment) unique(name string) string {
	e.files++
	return e.path(fmt.Sprintf("%d.%s", e.files, name))
}

// script is the path of a training script.
func (e *environment) script(name string) string {
	return filepath.Join(e.root, "testdata", "workloads", name+".py")
}

// output runs a command and returns the last line that it prints.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w", name, strings.Join(args, " "), err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1], nil
}
