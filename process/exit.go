// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ExitWatch reports how a process ended. It refers to the process itself, so a reused PID does not matter.
type ExitWatch struct {
	pid int
	fd  int
}

// WatchExit returns a watch of the process. The caller closes it.
func (p *Process) WatchExit() (*ExitWatch, error) {
	fd, err := p.Pidfd()
	if err != nil {
		return nil, err
	}
	return &ExitWatch{pid: p.PID, fd: fd}, nil
}

// Close releases the watch.
func (w *ExitWatch) Close() { _ = unix.Close(w.fd) }

// pidfdInfo is the first version of struct pidfd_info of include/uapi/linux/pidfd.h (Linux 6.13), which ends with exit_code.
type pidfdInfo struct {
	mask, cgroup                               uint64
	pid, tgid, ppid                            uint32
	ruid, rgid, euid, egid, suid, sgid, fu, fg uint32
	exit                                       int32
}

// pidfdGetInfo is PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info); pidfdInfoExit is PIDFD_INFO_EXIT (Linux 6.15).
const (
	pidfdGetInfo  = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xFF<<8 | 11
	pidfdInfoExit = 1 << 3
)

// Status returns the exit status as a shell reports it: for a process ended by a signal, 128 plus the signal. It waits for
// the end of the process, which the last thread announces before the kernel has freed the memory. ok is false if the
// process still runs, and if the status is not known, because the parent has read it and the kernel is older than 6.15.
func (w *ExitWatch) Status(wait time.Duration) (code int, ok bool) {
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(wait.Milliseconds())); err != nil || n == 0 {
		return 0, false
	}
	if code, ok := zombieStatus(w.pid); ok {
		return code, true
	}
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return shellStatus(int(info.exit)), true
}

// zombieStatus reads the status of a process whose parent has not waited for it. The kernel shows 0 to readers that may
// not trace the process.
func zombieStatus(pid int) (code int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const state, exit = 0, 49 // fields 3 and 52 of proc_pid_stat(5)
	if len(fields) <= exit || string(fields[state]) != "Z" {
		return 0, false
	}
	status, err := strconv.Atoi(string(fields[exit]))
	if err != nil || status == 0 && os.Geteuid() != 0 {
		return 0, false
	}
	return shellStatus(status), true
}

// shellStatus converts a status of wait(2) to a shell's.
func shellStatus(status int) int {
	if signal := status & 0x7f; signal != 0 {
		return 128 + signal
	}
	return status >> 8 & 0xff
}
