package process

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadAt reads memory with process_vm_readv(2): it needs what ptrace attach would need, but stops nothing.
func (p *Process) ReadAt(b []byte, addr uint64) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if p.gone {
		return 0, p.wrap("read the memory of", unix.ESRCH)
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMReadv(p.PID, local, remote, 0)
	if err != nil {
		return 0, p.wrap(fmt.Sprintf("read %d bytes at %#x of", len(b), addr), err)
	}
	if n < len(b) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// OpenPath opens a regular file by the path that the process itself would use, within its own root directory: a link in
// its file system cannot lead out of it.
func (p *Process) OpenPath(path string) (*os.File, error) {
	root, err := unix.Open(p.root+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, p.wrap("open the root directory of", err)
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, path, &how)
	if err != nil {
		return nil, p.wrap("open "+path+" of", err)
	}
	f := os.NewFile(uintptr(fd), path)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("open %s of pid %d: not a regular file", path, p.PID)
	}
	return f, nil
}

// Pidfd opens a descriptor that becomes readable when the process ends (pidfd_open(2), Linux 5.3). The caller closes it.
func (p *Process) Pidfd() (int, error) {
	if p.gone {
		return -1, p.wrap("pidfd_open", unix.ESRCH)
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, p.wrap("pidfd_open", err)
	}
	return fd, nil
}

// FileID identifies the file behind a mapping; the zero value when that is not known.
func (p *Process) FileID(m *Mapping) FileID {
	if m.Inode == 0 {
		return FileID{}
	}
	return FileIDOf(p.FilePath(m))
}

// FileIDOf identifies a file of ours; the zero value when there is none.
func FileIDOf(path string) FileID {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st) != nil {
		return FileID{}
	}
	ns := func(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }
	return FileID{
		Size: st.Size, Made: ns(st.Btime), Written: ns(st.Mtime), Inode: st.Ino, Device: unix.Mkdev(st.Dev_major, st.Dev_minor),
	}
}

// sameFile reports whether a file is the one that is mapped: by a path it may be one that took its place.
func sameFile(st os.FileInfo, m *Mapping) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Ino == m.Inode
}
