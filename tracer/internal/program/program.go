// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package program runs a program of gputrace's own with known stacks (image/program.S), under the names of traced libraries.
package program

import (
	"bytes"
	"debug/elf"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

//go:generate gcc -shared -nostdlib -Wl,-Bsymbolic,-z,noseparate-code,-z,norelro,--hash-style=sysv,--build-id=none,-e,_start -o image/program.elf image/program.S
//go:generate aarch64-linux-gnu-gcc -shared -nostdlib -Wl,-Bsymbolic,-znorelro,--build-id=none,-e_start -o image/program-arm64.elf image/program-arm64.S
//go:generate chmod 644 image/program.elf image/program-arm64.elf

//go:embed image/program.elf image/program-arm64.elf
var images embed.FS

// Image is a program whose stacks are known, see image/program.S. It is not ours to be traced: Go's programs have no unwind tables as
// other programs have them.
var Image, _ = images.ReadFile(map[string]string{"amd64": "image/program.elf", "arm64": "image/program-arm64.elf"}[runtime.GOARCH])

// Names under which the hook table finds the program.
const (
	Torch  = "libc10.so"
	Driver = "libcuda.so.1"
)

// Kinds of calls that the program makes at each step.
const (
	Report = iota
	ReportFree
	Allocate
	Free
)

// Timeout limits a step of our own program, which takes microseconds.
const Timeout = 5 * time.Second

// ErrEnded means that a signal ended our own program.
var ErrEnded = errors.New("it was ended by a signal")

// Program is a running program.
type Program struct {
	cmd *exec.Cmd
	In  io.WriteCloser // its standard input
	Out *os.File       // its standard output
}

// PID returns the PID of the program.
func (o *Program) PID() int { return o.cmd.Process.Pid }

// Path returns the path of the program.
func (o *Program) Path() string { return o.cmd.Path }

// Place writes an image to a new folder, under each of the names. The caller removes the folder.
func Place(image []byte, names ...string) (dir string, err error) {
	var errs []error
	for _, parent := range []string{os.TempDir(), "/dev/shm", "/run"} {
		if dir, err = placeIn(parent, image, names); err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("find a folder for a program of our own: %w", errors.Join(errs...))
}

// folder is the prefix of the names of Place's folders; the PID follows.
const folder = "gputrace-self-"

// placed has the folders that Place has created.
var placed sync.Map

// Abandon removes the folders that Place has created, if the process must end early.
func Abandon() {
	placed.Range(func(dir, _ any) bool { return os.RemoveAll(dir.(string)) == nil })
}

// abandoned is the age from which the folder of a killed gputrace is removed: a process in another PID namespace may
// own it and is not visible.
const abandoned = time.Minute

// sweep removes the folders of killed processes.
func sweep(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, folder+"*"))
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscanf(strings.TrimPrefix(filepath.Base(dir), folder), "%d-", &pid); err != nil || pid <= 0 {
			continue
		}
		info, err := os.Lstat(dir)
		if err == nil && info.IsDir() && time.Since(info.ModTime()) > abandoned && ended(pid) {
			_ = os.RemoveAll(dir) // who may not remove a folder leaves it to its owner
		}
	}
}

// ended reports whether /proc shows no such process.
func ended(pid int) bool {
	_, self := os.Stat("/proc/self")
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return self == nil && errors.Is(err, os.ErrNotExist)
}

func placeIn(parent string, image []byte, names []string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(parent, &fs); err != nil {
		return "", fmt.Errorf("%s: %w", parent, err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s: is mounted noexec", parent)
	}
	sweep(parent)
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-", folder, os.Getpid()))
	if err != nil {
		return "", err
	}
	placed.Store(dir, true)
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), image, 0o755); err != nil {
			_ = os.RemoveAll(dir) // the first error counts
			return "", err
		}
	}
	return dir, nil
}

// Start starts a program that answers commands.
func Start(path string, args ...string) (*Program, error) {
	o := &Program{cmd: exec.Command(path, args...)}
	var err error
	if o.In, err = o.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	o.Out = out.(*os.File) // os/exec creates it with os.Pipe
	if err := o.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a program of our own: %w", err)
	}
	return o, nil
}

// Step makes the program make its calls from the given number of frames, and waits until it has. ErrEnded: the program
// did not survive.
func (o *Program) Step(frames byte) error {
	if _, err := o.In.Write([]byte{frames}); err != nil {
		return o.exitReason(err)
	}
	_ = o.Out.SetReadDeadline(time.Now().Add(Timeout)) // a pipe has deadlines
	if _, err := io.ReadFull(o.Out, make([]byte, 1)); err != nil {
		return o.exitReason(err)
	}
	return nil
}

// exitReason returns why the program does not answer.
func (o *Program) exitReason(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a program of our own does not answer: %w", err)
	}
	_ = o.In.Close()
	var exit *exec.ExitError
	if werr := o.cmd.Wait(); errors.As(werr, &exit) && !exit.Exited() {
		return fmt.Errorf("a program of our own: %w: %s", ErrEnded, exit)
	}
	return fmt.Errorf("a program of our own does not answer: %w", err)
}

// Close ends the program.
func (o *Program) Close() {
	_ = o.In.Close()
	_ = o.cmd.Process.Kill() // usually it has ended
	_ = o.cmd.Wait()
}

// Code has the locations of functions in the image.
type Code struct {
	file    *elf.File
	Address map[string]uint64 // link-time addresses of symbols
}

// ReadCode reads the locations from the image.
func ReadCode() (*Code, error) {
	f, err := elf.NewFile(bytes.NewReader(Image))
	if err != nil {
		return nil, fmt.Errorf("read the program of our own: %w", err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("read the program of our own: %w", err)
	}
	c := &Code{f, map[string]uint64{}}
	for _, s := range symbols {
		c.Address[s.Name] = s.Value
	}
	return c, nil
}

// Offset returns the file offset of a symbol's code.
func (c *Code) Offset(symbol string) uint64 {
	at := c.Address[symbol]
	for _, p := range c.file.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= at && at < p.Vaddr+p.Filesz {
			return at - p.Vaddr + p.Off
		}
	}
	return 0
}

// inTurn are the functions through which a step calls, root first.
var inTurn = []string{"plain", "pointer", "saves"}

// Stack returns the addresses of the frames of a call, leaf first, up to the function that was asked to step: the
// called function, and return addresses.
func (c *Code) Stack(kind int, frames byte) []uint64 {
	leaf := []string{"report", "report", "allocate", "free"}[kind]
	out := []uint64{c.Address[leaf], c.Address[fmt.Sprintf("returns_%d", kind)]}
	for i := int(frames); i >= 0; i-- {
		out = append(out, c.Address["returns_"+inTurn[i%len(inTurn)]])
	}
	return append(out, c.Address["returns_step"])
}
