// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/darwin/macho"
)

// program is what is started: dyld drops the library at each program of macOS's own, so scripts are given to their interpreter by us
// rather than by the kernel and /usr/bin/env.
type program struct {
	path    string
	args    []string // from the name on
	warning string   // empty: none
}

// maxScripts is how many interpreters may be scripts themselves.
const maxScripts = 4

// resolve finds the program of a command, through the first lines of scripts.
func resolve(command []string) (*program, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, err
	}
	p := &program{path: path, args: command}
	for range maxScripts {
		words := interpreter(p.path)
		if words == nil {
			break
		}
		if filepath.Base(words[0]) == "env" && len(words) > 1 && !strings.HasPrefix(words[1], "-") && !strings.Contains(words[1], "=") {
			words = words[1:]
		}
		next, err := exec.LookPath(words[0])
		if err != nil {
			return nil, fmt.Errorf("interpreter of %s: %w", p.path, err)
		}
		p.args = append(append(words, p.path), p.args[1:]...)
		p.path = next
	}
	if file, err := macho.Open(p.path); err == nil {
		if v := file.Insert(); !v.Works {
			p.warning = strings.TrimSpace(fmt.Sprintf("%s: nothing will be seen of it: %s %s", p.path, v.Why, v.Fix))
		}
	}
	return p, nil
}

// interpreter are the words of a script's first line; nil: it is no script.
func interpreter(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 512).ReadSlice('\n')
	if err != nil || !strings.HasPrefix(string(line), "#!") {
		return nil
	}
	words := strings.Fields(string(line[2:]))
	if len(words) == 0 {
		return nil
	}
	return words
}

// launched is the program that runs.
type launched struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func (p *program) start(environ []string) (*launched, error) {
	cmd := exec.Command(p.path)
	cmd.Args = p.args
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	l := &launched{cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // wait looks at how it ended
		close(l.done)
	}()
	return l, nil
}

func (l *launched) running() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// signal passes a signal on, but for one of a terminal, which the program has got itself.
func (l *launched) signal(s os.Signal) {
	group, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	if s != os.Interrupt || err != nil || group != unix.Getpgrp() {
		_ = l.cmd.Process.Signal(s) // it may have ended
	}
}

// wait returns the exit code, as a shell says it.
func (l *launched) wait() int {
	<-l.done
	status, ok := l.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return l.cmd.ProcessState.ExitCode()
}
