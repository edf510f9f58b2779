//go:build amd64

package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/process/words"
	"github.com/gputrace/gputrace/tracer"
)

// startFD is the pipe on which the starter waits.
const startFD = 3

// Exit codes of a program that was not started, as shells have them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// launched is what run has started. Until release it is the starter, which has not become the program yet.
type launched struct {
	cmd  *exec.Cmd
	gate *os.File
	done chan struct{}
}

// startProgram starts the program of the command line, traced from its first instruction.
func (j *job) startProgram() error {
	path, err := exec.LookPath(j.opts.command[0])
	if err != nil {
		return coded(exitNotFound, err)
	}
	p, err := newProgram(path, j.opts.command)
	if err != nil {
		return err
	}
	j.program, j.out = p, os.Stderr // standard output is the program's
	for _, file := range append(linkedFiles(path), loadedFiles(os.Getenv("LD_LIBRARY_PATH"))...) {
		if err := j.tracer.HookFile(file); err != nil {
			j.screen.warn(err)
		}
	}
	target, err := process.Open(p.cmd.Process.Pid)
	if err == nil {
		err = j.tracer.Expect(target)
	}
	if err != nil {
		p.gate.Close() // the starter ends
		<-p.done
		return explain(err, j.opts)
	}
	memory := j.tracer.Memory()
	j.screen.say("gputrace %s · pid %d %s · Linux %s, %s", version, target.PID, commandLine(j.opts.command, path), kernelRelease(), memory.String())
	return p.release()
}

// linkedFiles are what a program is linked with and gputrace hooks, and its dynamic linker, as that would find them. None for what
// is no program, such as a script.
func linkedFiles(path string) []string {
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
	list, err := exec.Command(linker, "--list", path).Output() // the linker alone runs: it says what it would map
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(list)) {
		_, file, _ := strings.Cut(line, "=> ")
		file, _, _ = strings.Cut(strings.TrimSpace(file), " (0x")
		if tracer.Hookable(file) {
			out = append(out, file)
		}
	}
	return out
}

// driverNames are libraries that programs load by name when they first use a GPU: the CUDA runtime does, also where it is linked
// statically (dlopen of its soname).
var driverNames = []string{"libcuda.so.1"}

// loadedFiles are the files of driverNames that the dynamic linker would find: in the folders of a search path, else in its cache,
// which ldconfig prints (ld.so(8)).
func loadedFiles(searchPath string) []string {
	var out []string
	list, _ := exec.Command("/sbin/ldconfig", "-p").Output() // without it the cache is not known
	for _, name := range driverNames {
		if file := inFolders(filepath.SplitList(searchPath), name); file != "" {
			out = append(out, file)
			continue
		}
		for line := range strings.Lines(string(list)) {
			entry, file, _ := strings.Cut(strings.TrimSpace(line), " => ")
			if strings.HasPrefix(entry, name+" (") && strings.Contains(entry, "x86-64") && tracer.Hookable(file) {
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

// newProgram starts the starter: this program, which waits for the release and then becomes the other one. So the process is known
// before that runs, and nothing stops it.
func newProgram(path string, args []string) (*launched, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{startName, path}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{r}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p := &launched{cmd: cmd, gate: w, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // wait looks at how it ended
		close(p.done)
	}()
	return p, nil
}

// release lets the starter become the program.
func (p *launched) release() error {
	_, err := p.gate.Write([]byte{1})
	return errors.Join(err, p.gate.Close())
}

// startHere waits for the release, then becomes the program: a path, and its arguments from the name on.
func startHere(args []string) error {
	gate := os.NewFile(startFD, "gate")
	if n, _ := gate.Read(make([]byte, 1)); n == 0 || len(args) < 2 {
		return coded(exitError, errors.New("")) // gputrace is gone, and has said why
	}
	gate.Close()
	err := syscall.Exec(args[0], args[1:], os.Environ())
	return coded(exitNotExecutable, fmt.Errorf("%s: %w", args[0], err))
}

// pass gives the program a signal, but for one of a terminal, which it has got itself.
func (p *launched) pass(s os.Signal) {
	group, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	if s == os.Interrupt && err == nil && group == unix.Getpgrp() {
		return
	}
	_ = p.cmd.Process.Signal(s) // it may have ended
}

// wait waits for the program and gives its exit code. An error of ours counts only when the program had none.
func (p *launched) wait(err error) error {
	<-p.done
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if code != 0 || exit.Code(err) == exitTargetEnded { // that it used no GPU is not its fault
		if err != nil {
			fmt.Fprintln(os.Stderr, "gputrace:", words.Text(err.Error()))
		}
		err = nil
	}
	if code != 0 {
		return coded(code, errors.New(""))
	}
	return err
}
