package process

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReadAt reads memory with process_vm_readv(2): it needs what ptrace attach would need, but stops nothing.
func (p *Process) ReadAt(b []byte, addr uint64) (int, error) {
	if len(b) == 0 {
		return 0, nil
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
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, p.wrap("pidfd_open", err)
	}
	return fd, nil
}
