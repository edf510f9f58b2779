// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package footprint keeps gputrace's own memory small while it traces: it shares the machine, or a control group, with the job.
package footprint

import (
	"bytes"
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"time"

	"github.com/gputrace/gputrace/internal/elfimage"
)

const (
	// garbage is how much of it may pile up, percent of what is in use.
	garbage = 25
	// slack is how much more than what is in use the Go heap may have before memory is given back to the kernel, bytes.
	slack = 8 << 20
	// mappedMost is how much of mapped files may be resident beside the program itself, bytes: symbols and unwind rows of PyTorch's libraries
	// are hundreds of MiB, each of which is read once.
	mappedMost = 8 << 20
	// every is how often that is looked at.
	every = 20 * time.Millisecond
)

// Keep keeps the memory small until ctx is done.
func Keep(ctx context.Context) {
	defer debug.SetGCPercent(debug.SetGCPercent(garbage))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var limit int64
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	rest := residentFiles() // the program itself, and what else is mapped that is no image
	for {
		metrics.Read(live)
		if want := int64(live[0].Value.Uint64())*(100+garbage)/100 + slack; want != limit {
			limit = want
			debug.SetMemoryLimit(limit)
		}
		if residentFiles() > rest+mappedMost {
			elfimage.ReleaseAll()
			rest = residentFiles()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// residentFiles is how much of mapped files is resident (proc_pid_statm(5): shared), bytes.
func residentFiles() int64 {
	b, _ := os.ReadFile("/proc/self/statm")
	f := bytes.Fields(b)
	if len(f) < 3 {
		return 0
	}
	n, _ := strconv.ParseInt(string(f[2]), 10, 64)
	return n * int64(os.Getpagesize())
}
