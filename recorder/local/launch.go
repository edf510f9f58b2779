// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
)

// startFD is the pipe on which the starter waits.
const startFD = 3

// launched is a started program. Until release it is still the starter, which has not become the program.
type launched struct {
	cmd      *exec.Cmd
	gate     *os.File
	done     chan struct{}
	released atomic.Bool
}

// signaled reports whether a signal ended it. It waits until it has ended.
func (p *launched) signaled() bool {
	<-p.done
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
}

// startProgram starts the program of the options, traced from its first instruction.
func (l *live) startProgram() error {
	command := l.options.Command
	as, err := l.identity()
	if err != nil {
		return &recorder.LaunchError{Err: err}
	}
	path, err := as.lookPath(command[0])
	if err != nil {
		return &recorder.LaunchError{Err: err}
	}
	p, err := newProgram(path, command, l.options.Starter, as)
	if err != nil {
		return err
	}
	l.program.Store(p)
	for _, file := range append(linkedFiles(path, as), loadedFiles(as.value("LD_LIBRARY_PATH"))...) {
		if err := l.tracer.HookFile(file); err != nil {
			l.warn(err)
		}
	}
	target, err := process.Open(p.cmd.Process.Pid)
	if err == nil {
		err = l.tracer.Expect(target)
	}
	if err != nil {
		p.gate.Close() // ends the starter
		if p.signaled() {
			return nil // it was interrupted, as from a terminal: a program that ends at once
		}
		l.program.Store(nil)
		return &recorder.AttachError{Err: err}
	}
	memory := l.tracer.Memory()
	l.say("gputrace %s · pid %d %s%s · Linux %s, %s", l.options.Version, target.PID, words.CommandLine(command, path), as,
		process.KernelRelease(), memory.String())
	err = p.release()
	if s := l.early.Swap(nil); s != nil {
		_ = p.cmd.Process.Signal(*s) // it may have ended
	}
	return err
}

// linkedFiles returns the libraries to hook that a program is linked with, and its dynamic linker, as the dynamic
// linker would find them. It returns none if path is not a program, such as a script.
func linkedFiles(path string, as *identity) []string {
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	section := f.Section(".interp")
	if section == nil {
		return nil
	}
	b, err := section.Data()
	linker := strings.TrimRight(string(b), "\x00")
	if err != nil || !filepath.IsAbs(linker) {
		return nil
	}
	out := []string{linker}
	cmd := exec.Command(linker, "--list", path) // runs only the linker, which prints what it would map
	cmd.Env, cmd.SysProcAttr = as.env, as.attributes()
	list, err := cmd.Output()
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(list)) {
		name, file, found := strings.Cut(line, "=> ")
		if !found {
			file = name // linked by path
		}
		file, _, _ = strings.Cut(strings.TrimSpace(file), " (0x")
		if tracer.Hookable(file) {
			out = append(out, file)
		}
	}
	return out
}

// driverNames are libraries that programs load by name (dlopen of the soname) when they first use a GPU, as the CUDA
// runtime does, even when it is linked statically.
var driverNames = []string{"libcuda.so.1"}

// cacheName is how the dynamic linker's cache marks libraries of this machine (ldconfig -p of glibc).
var cacheName = map[string]string{"amd64": "x86-64", "arm64": "AArch64"}[runtime.GOARCH]

// loadedFiles returns the files of driverNames that the dynamic linker would find: in the folders of a search path,
// otherwise in its cache, which ldconfig prints (ld.so(8)).
func loadedFiles(searchPath string) []string {
	var out []string
	list, _ := exec.Command("/sbin/ldconfig", "-p").Output() // if it fails, the cache is not known
	for _, name := range driverNames {
		if file := inFolders(filepath.SplitList(searchPath), name); file != "" {
			out = append(out, file)
			continue
		}
		for line := range strings.Lines(string(list)) {
			entry, file, _ := strings.Cut(strings.TrimSpace(line), " => ")
			if strings.HasPrefix(entry, name+" (") && strings.Contains(entry, cacheName) && tracer.Hookable(file) {
				out = append(out, file)
			}
		}
	}
	return out
}

func inFolders(folders []string, name string) string {
	for _, f := range folders {
		if file := filepath.Join(f, name); filepath.IsAbs(file) && tracer.Hookable(file) {
			if _, err := os.Stat(file); err == nil {
				return file
			}
		}
	}
	return ""
}

// newProgram starts the starter: this program, with arguments that make it call Become, which waits for the release. In
// this way the process is known before the other program runs, without stopping anything.
func newProgram(path string, args []string, starter []string, as *identity) (*launched, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", slices.Concat(starter, []string{path}, args)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{r}
	cmd.Env, cmd.SysProcAttr = as.env, as.attributes()
	if err := cmd.Start(); err != nil {
		w.Close()
		if as.user != nil && errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w: user %d must be allowed to execute gputrace itself", err, as.user.Uid)
		}
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p := &launched{cmd: cmd, gate: w, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // wait examines how it ended
		close(p.done)
	}()
	return p, nil
}

// release lets the starter become the program.
func (p *launched) release() error {
	_, err := p.gate.Write([]byte{1})
	p.released.Store(true)
	return errors.Join(err, p.gate.Close())
}

// ErrAbandoned means that gputrace ended before releasing its starter. gputrace has reported the reason.
var ErrAbandoned = errors.New("gputrace has ended")

// Become waits for the release, then becomes the program: args has its path, then its arguments beginning with its
// name. It returns ErrAbandoned, or why the program cannot be run.
func Become(args []string) error {
	gate := os.NewFile(startFD, "gate")
	if n, _ := gate.Read(make([]byte, 1)); n == 0 || len(args) < 2 {
		return ErrAbandoned
	}
	gate.Close()
	err := syscall.Exec(args[0], args[1:], os.Environ())
	return fmt.Errorf("%s: %w", args[0], err)
}

// Signal implements Source. It forwards the signal to the program, except signals from a terminal, which the program
// has received itself.
func (l *live) Signal(s os.Signal) bool {
	p := l.program.Load()
	if l.options.Command != nil && (p == nil || !p.released.Load()) { // the program gets the signal once it has started, not its starter
		l.early.Store(&s)
		if p = l.program.Load(); p != nil && (!p.released.Load() || l.early.Swap(nil) == nil) {
			return true
		}
	}
	if p == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	if s != os.Interrupt || err != nil || group != unix.Getpgrp() {
		_ = p.cmd.Process.Signal(s) // it may have ended
	}
	return true
}

// Wait implements Source.
func (l *live) Wait() (code int, started bool) {
	p := l.program.Load()
	if p == nil {
		return 0, false
	}
	<-p.done
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), true
	}
	return status.ExitStatus(), true
}
