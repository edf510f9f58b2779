// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"bytes"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

//go:generate gcc -shared -nostdlib -Wl,-Bsymbolic,-z,noseparate-code,-z,norelro,--hash-style=sysv,--build-id=none,-e,_start -o own/own.elf own/own.S
//go:generate chmod 644 own/own.elf

// ownImage is a program whose stacks are known, see own/own.S. It is not ours to be traced: Go's programs have no unwind tables as
// other programs have them.
//
//go:embed own/own.elf
var ownImage []byte

// The names under which it is found by the hook table.
const (
	ownTorch  = "libc10.so"
	ownDriver = "libcuda.so.1"
)

// Kinds of calls that the program makes at each step.
const (
	ownReport = iota
	ownReportFree
	ownAllocate
	ownFree
)

// ownTimeout is how long a step of a program of our own may take: it takes microseconds.
const ownTimeout = 5 * time.Second

// errOwnEnded: a program of our own was ended by a signal.
var errOwnEnded = errors.New("it was ended by a signal")

// own is a program of ours that runs.
type own struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *os.File
}

// placeOwn writes the image to a new folder, under each of the names. The caller removes the folder.
func placeOwn(names ...string) (dir string, err error) {
	var errs []error
	for _, parent := range []string{os.TempDir(), "/dev/shm", "/run"} {
		if dir, err = placeOwnIn(parent, names); err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("find a folder for a program of our own: %w", errors.Join(errs...))
}

func placeOwnIn(parent string, names []string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(parent, &fs); err != nil {
		return "", fmt.Errorf("%s: %w", parent, err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s: is mounted noexec", parent)
	}
	dir, err := os.MkdirTemp(parent, "gputrace-self-")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), ownImage, 0o755); err != nil {
			_ = os.RemoveAll(dir) // the first error counts
			return "", err
		}
	}
	return dir, nil
}

// startOwn runs a program that answers commands.
func startOwn(path string, args ...string) (*own, error) {
	o := &own{cmd: exec.Command(path, args...)}
	var err error
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	o.out = out.(*os.File) // os/exec makes it with os.Pipe
	if err := o.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a program of our own: %w", err)
	}
	return o, nil
}

// step has it make its calls from so many frames, and waits until they are made. errOwnEnded: the program did not survive it.
func (o *own) step(frames byte) error {
	if _, err := o.in.Write([]byte{frames}); err != nil {
		return o.exitReason(err)
	}
	_ = o.out.SetReadDeadline(time.Now().Add(ownTimeout)) // a pipe has deadlines
	if _, err := io.ReadFull(o.out, make([]byte, 1)); err != nil {
		return o.exitReason(err)
	}
	return nil
}

// exitReason finds out why the program does not answer.
func (o *own) exitReason(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a program of our own does not answer: %w", err)
	}
	_ = o.in.Close()
	var exit *exec.ExitError
	if werr := o.cmd.Wait(); errors.As(werr, &exit) && !exit.Exited() {
		return fmt.Errorf("a program of our own: %w: %s", errOwnEnded, exit)
	}
	return fmt.Errorf("a program of our own does not answer: %w", err)
}

// close ends the program.
func (o *own) close() {
	_ = o.in.Close()
	_ = o.cmd.Process.Kill() // it has ended by itself, mostly
	_ = o.cmd.Wait()
}

// ownCode is where things are in the image.
type ownCode struct {
	file    *elf.File
	address map[string]uint64 // of symbols, link-time addresses
}

func readOwn() (*ownCode, error) {
	f, err := elf.NewFile(bytes.NewReader(ownImage))
	if err != nil {
		return nil, fmt.Errorf("read the program of our own: %w", err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("read the program of our own: %w", err)
	}
	c := &ownCode{f, map[string]uint64{}}
	for _, s := range symbols {
		c.address[s.Name] = s.Value
	}
	return c, nil
}

// offset is where in the file a symbol's code is.
func (c *ownCode) offset(symbol string) uint64 {
	at := c.address[symbol]
	for _, p := range c.file.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= at && at < p.Vaddr+p.Filesz {
			return at - p.Vaddr + p.Off
		}
	}
	return 0
}

// inTurn are the functions that a step goes through, from the root on.
var inTurn = []string{"plain", "pointer", "saves"}

// stack are the addresses of the frames of a call, from the leaf on, up to the function that was asked to step: the function that is
// called, and return addresses.
func (c *ownCode) stack(kind int, frames byte) []uint64 {
	leaf := []string{"report", "report", "allocate", "free"}[kind]
	out := []uint64{c.address[leaf], c.address[fmt.Sprintf("returns_%d", kind)]}
	for i := int(frames); i >= 0; i-- {
		out = append(out, c.address["returns_"+inTurn[i%len(inTurn)]])
	}
	return append(out, c.address["returns_step"])
}
