// SPDX-License-Identifier: Apache-2.0

//go:build linux

package limits

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Memory of a trace besides the kernel's rings and tables, bytes: measured on PyTorch jobs by what a control group is charged
// (docs/use/environments.md).
const (
	memoryRows   = 50 << 20 // the kernel's tables of unwind rows, which grow with the libraries of the job
	memoryTrace  = 88 << 20 // gputrace's own, without holders
	memoryFew    = 60 << 20 // more while holders are read with few pages of the job in memory, and
	memoryMany   = 80 << 20 // with as many as is quickest
	smallRing    = 4 << 20
	memorySpared = 8 << 20 // that stays free
)

// Budget is how a trace fits into the memory that there is.
type Budget struct {
	Room           // before the trace
	Need    uint64 // in the way that was chosen, bytes
	Ring    int    // the ring between kernel and gputrace, bytes
	Holders bool   // there is surely room to read who holds the memory
}

// Room is the memory that gputrace may still take.
type Room struct {
	Left  uint64 // bytes
	Where string // "gputrace's control group", "the machine"
}

// Smaller says what is not as it would be with more memory; empty: nothing.
func (b *Budget) Smaller(ring int) string {
	said := ""
	if b.Ring != ring {
		said = fmt.Sprintf("the ring has %d MiB, so more events may be lost", b.Ring>>20)
	}
	if !b.Holders {
		if said != "" {
			said += ", and "
		}
		said += "holders may not be read"
	}
	if said != "" {
		said = fmt.Sprintf("%s has %d MiB of memory left: %s", b.Where, b.Left>>20, said)
	}
	return said
}

// FreeMemory returns the memory that may still be taken: what our control groups leave, or the machine where that
// is less. ok is false where neither is known.
func FreeMemory() (r Room, ok bool) {
	if n, found := available(setting("/proc/meminfo")); found {
		r, ok = Room{n, "the machine"}, true
	}
	if left, limited := Left(Memory); limited && (!ok || left < r.Left) {
		r, ok = Room{left, "gputrace's control group"}, true
	}
	return r, ok
}

// available is what the kernel says is there for a new program (proc_meminfo(5)).
func available(meminfo string) (uint64, bool) {
	_, after, found := strings.Cut(meminfo, "MemAvailable:")
	f := strings.Fields(after)
	if !found || len(f) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(f[0], 10, 64)
	return n << 10, err == nil
}

// FitMemory chooses how a trace fits: as asked for, with a smaller ring if the size is not fixed, without holders. If nothing fits, the
// error names the memory. kernel is what the kernel takes for a ring of a size, beside the rows. FitMemory waits a moment for the maps of a
// gputrace that has just ended in the same control group, because the kernel frees them later.
func FitMemory(ring int, fixed bool, kernel func(ring int) (uint64, error)) (*Budget, error) {
	for end := time.Now().Add(freedAfter); ; time.Sleep(freedAfter / 10) {
		room, ok := FreeMemory()
		if !ok {
			return &Budget{Ring: ring, Holders: true}, nil
		}
		b, err := room.fit(ring, fixed, kernel)
		if err == nil || time.Now().After(end) {
			return b, err
		}
	}
}

// freedAfter is more than the kernel takes to free the maps of a program that has ended: some periods of RCU.
const freedAfter = 500 * time.Millisecond

func (r Room) fit(ring int, fixed bool, kernel func(ring int) (uint64, error)) (*Budget, error) {
	ways := []Budget{{Ring: ring, Need: memoryMany, Holders: true}}
	if fixed || ring <= smallRing {
		ways = append(ways, Budget{Ring: ring, Need: memoryFew, Holders: true}, Budget{Ring: ring})
	} else {
		ways = append(ways, Budget{Ring: smallRing, Need: memoryFew, Holders: true}, Budget{Ring: smallRing})
	}
	for i := range ways {
		b := &ways[i]
		k, err := kernel(b.Ring)
		if err != nil {
			return nil, err
		}
		b.Room, b.Need = r, b.Need+k+memoryRows+memoryTrace
		if b.Need+memorySpared <= r.Left {
			return b, nil
		}
	}
	return nil, r.tooLittle(ways[len(ways)-1].Need+memorySpared, "a trace without holders")
}

// tooLittle says that there is too little memory for something.
func (r Room) tooLittle(need uint64, what string) *TooLow {
	return &TooLow{
		Says: fmt.Sprintf("%s has %d MiB of memory left, and %s needs %d MiB", r.Where, r.Left>>20, what, (need+1<<20-1)>>20),
		Fixes: []string{
			"docker run --memory 1g ...", `kubernetes: resources: {limits: {memory: "1Gi"}}`, "systemd: MemoryMax=1G",
		},
	}
}

// HoldersMemory chooses how many of a job's bytes a reading of holders holds at once; 0: as many as is quickest.
// The error says that there is no room for any.
func HoldersMemory() (held uint64, err error) {
	if room, ok := FreeMemory(); ok {
		return room.holders()
	}
	return 0, nil
}

func (r Room) holders() (held uint64, err error) {
	switch {
	case r.Left >= memoryMany+memorySpared:
		return 0, nil
	case r.Left >= memoryFew+memorySpared:
		return memoryFew / 10, nil
	}
	return 0, noRoom{r.tooLittle(memoryFew+memorySpared, "a reading of the job's holders")}
}

// noRoom is too little memory for a part of a trace, in one line.
type noRoom struct{ low *TooLow }

func (n noRoom) Error() string { return n.low.Says }
func (n noRoom) Unwrap() error { return n.low }
