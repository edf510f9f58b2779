// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
)

// copyLimit is how many pages may be copied, by what the machine has to spare: MemAvailable of proc_meminfo(5), KiB.
func copyLimit() int {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return minPages
	}
	_, after, _ := bytes.Cut(b, []byte("MemAvailable:"))
	var available uint64
	if _, err := fmt.Sscanf(string(after), "%d", &available); err != nil {
		return minPages
	}
	return int(min(max(available*1024/pageSize/copyShare, minPages), maxPages))
}

// vectorBatch reads up to 1,024 pages with one process_vm_readv(2). Pages beside each other are one range for the kernel.
func vectorBatch(pid int) batch {
	return func(to [][]byte, addrs []uint64) error {
		for len(to) > 0 {
			n := min(len(to), maxVectors)
			local := make([]unix.Iovec, n)
			var remote []unix.RemoteIovec
			for i := range n {
				local[i] = unix.Iovec{Base: &to[i][0], Len: pageSize}
				if last := len(remote) - 1; i > 0 && addrs[i] == addrs[i-1]+pageSize {
					remote[last].Len += pageSize
					continue
				}
				remote = append(remote, unix.RemoteIovec{Base: uintptr(addrs[i]), Len: pageSize})
			}
			got, err := unix.ProcessVMReadv(pid, local, remote, 0)
			if process.Refused(err) {
				got, err = process.ReadMemory(pid, to[:n], addrs, err)
			}
			if err != nil {
				return fmt.Errorf("read %d pages of pid %d: %w", n, pid, err)
			}
			if want := n * pageSize; got < want {
				return fmt.Errorf("read %d pages of pid %d: got %d bytes, want %d", n, pid, got, want)
			}
			to, addrs = to[n:], addrs[n:]
		}
		return nil
	}
}

func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
