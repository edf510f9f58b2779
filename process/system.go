// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadAt reads memory with process_vm_readv(2), or through /proc/PID/mem where a filter or the kernel's configuration refuses that call. It
// requires the rights of a ptrace attach, but stops nothing.
func (p *Process) ReadAt(b []byte, addr uint64) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if p.ended {
		return 0, p.wrap("read the memory of", unix.ESRCH)
	}
	tid := p.PID
	if last := p.living.Load(); last != 0 {
		tid = int(last)
	}
	n, err := readMemory(tid, b, addr)
	if errors.Is(err, unix.ESRCH) { // the thread has ended: another one has the same memory
		if other := p.Thread(); other != tid {
			n, err = readMemory(other, b, addr)
		}
	}
	if err != nil {
		return 0, p.wrap(fmt.Sprintf("read %d bytes at %#x of", len(b), addr), err)
	}
	if n < len(b) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

func readMemory(tid int, b []byte, addr uint64) (int, error) {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMReadv(tid, local, remote, 0)
	if !Refused(err) {
		return n, err
	}
	return ReadMemory(tid, [][]byte{b}, []uint64{addr}, err)
}

// Refused reports whether process_vm_readv(2) failed for a reason that need not hold for /proc/PID/mem: a seccomp filter, or a kernel built
// without CONFIG_CROSS_MEMORY_ATTACH. The call also fails so if the process may not be read at all, and then the file cannot be opened.
func Refused(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) }

// ReadMemory reads through /proc/PID/mem, with the results of process_vm_readv(2): it stops before the first address that cannot be read.
// Refused is the error if the file cannot be opened, because then the process itself may not be read.
func ReadMemory(pid int, to [][]byte, addrs []uint64, refused error) (got int, err error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, refused
	}
	defer unix.Close(fd)
	for i, b := range to {
		n, err := unix.Pread(fd, b, int64(addrs[i]))
		got += max(n, 0)
		switch {
		case errors.Is(err, unix.EIO) && got > 0:
			return got, nil
		case errors.Is(err, unix.EIO): // proc(5): nothing is mapped there
			return 0, unix.EFAULT
		case err != nil || n < len(b):
			return got, err
		}
	}
	return got, nil
}

// find finds the mapped file without opening it (O_PATH of open(2)).
func (p *Process) find(m *Mapping) (*os.File, error) {
	fd, err := unix.Open(p.mapFile(m), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		return os.NewFile(uintptr(fd), m.Path), nil
	}
	root, err := p.Root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	place, err := root.locate(m.Path, 0)
	if errors.Is(err, unix.ENOENT) {
		place, err = root.locate(strings.ReplaceAll(m.Path, `\012`, "\n"), 0)
	}
	if err != nil {
		return nil, mapFilesHelp(m, err)
	}
	st, err := place.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", m.Path)
	case !sameFile(st, m):
		err = mapFilesHelp(m, errors.New("it is another file than the one that is mapped"))
	}
	if err != nil {
		place.Close()
		return nil, err
	}
	return place, nil
}

// mapFilesHelp says what is needed to reach a file that is no longer at its path.
func mapFilesHelp(m *Mapping, err error) error {
	if m.Deleted || !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: CAP_CHECKPOINT_RESTORE or root reaches the mapped one, through map_files", err)
	}
	return fmt.Errorf("%w: %w", err, ErrPrivate)
}

// reopen opens for reading what locate found, if it is a regular file.
func reopen(place *os.File, path string) (*os.File, error) {
	st, err := place.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", place.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Pidfd opens a descriptor that becomes readable when the process ends (pidfd_open(2), Linux 5.3). The caller closes it.
func (p *Process) Pidfd() (int, error) {
	if p.ended {
		return -1, p.wrap("pidfd_open", unix.ESRCH)
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, p.wrap("pidfd_open", err)
	}
	return fd, nil
}

// FileID identifies the mapped file; the zero value when it is not known.
func (p *Process) FileID(m *Mapping) FileID {
	if m.Inode == 0 {
		return FileID{}
	}
	place, err := p.find(m)
	if err != nil {
		return FileID{}
	}
	defer place.Close()
	return FileIDOf(place)
}

// FileIDOf identifies an open file; the zero value when it cannot be inspected.
func FileIDOf(f *os.File) FileID {
	var st unix.Statx_t
	if unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st) != nil {
		return FileID{}
	}
	ns := func(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }
	return FileID{
		Size: st.Size, Made: ns(st.Btime), Written: ns(st.Mtime), Inode: st.Ino, Device: unix.Mkdev(st.Dev_major, st.Dev_minor),
	}
}

// sameFile reports whether a file found by its path is the mapped one, and not one that replaced it.
func sameFile(st os.FileInfo, m *Mapping) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Ino == m.Inode
}
