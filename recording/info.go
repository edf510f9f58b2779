// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"time"

	"github.com/gputrace/gputrace/event/figures"
)

// Info is what is known when a recording begins. Empty strings: not known.
type Info struct {
	Gputrace string    `json:"gputrace"` // version that recorded
	Started  time.Time `json:"started"`  // wall clock
	// StartedBoot is Started on the clock of the events, CLOCK_BOOTTIME nanoseconds.
	StartedBoot uint64 `json:"started_boot_ns"`
	Attached    uint64 `json:"attached_boot_ns"` // when the first probe was attached, CLOCK_BOOTTIME nanoseconds

	PID     uint32   `json:"pid"`
	Rank    *Rank    `json:"rank,omitempty"` // nil: not one of a job, as far as is known
	Name    string   `json:"name"`           // of the program; what is not printable is escaped as in Go
	Exe     string   `json:"exe"`
	Cmdline []string `json:"cmdline"` // the first arguments
	Python  string   `json:"python"`
	PyTorch string   `json:"pytorch"`
	CUDA    string   `json:"cuda"` // that PyTorch was built for
	Driver  string   `json:"driver"`
	Kernel  string   `json:"kernel"` // release
	Memory  string   `json:"memory"` // how it was read: "memory in place" or "memory copied"; empty: not known
	Hooks   []Hook   `json:"hooks"`
	// Backward is why allocations of the backward pass are not named by the lines of forward; empty: they are, or the recording is
	// older than that.
	Backward string `json:"backward,omitempty"`
	// Libraries are prefixes of Python files that are not the program's own.
	Libraries []string `json:"libraries"`
}

// Rank is the place of a process in a job.
type Rank struct {
	Rank  int `json:"rank"`
	Local int `json:"local"` // on its host; -1: not known
	World int `json:"world"` // ranks of the job; 0: not known
}

// Hook is the functions of one file that were hooked at the attach.
type Hook struct {
	Library   string `json:"library"` // such as "libcudart"
	File      string `json:"file"`    // as the program sees it
	Functions int    `json:"functions"`
}

// End is what is known when a recording ends. A recording without it was cut off.
type End struct {
	Reason   string        `json:"reason"` // one of the Reasons
	Duration time.Duration `json:"duration_ns"`
	// Paused is why no thread of the process ran at the end of the recording, for "pid N was ..."; empty: it ran, or that is not known.
	Paused string `json:"paused,omitempty"`
	// ExitStatus is how the program ended, as a shell reports it; nil: it did not, or that is not known.
	ExitStatus *int `json:"exit_status,omitempty"`
	// NotWritten is events that were not recorded, because of Error.
	NotWritten uint64 `json:"not_written"`
	Error      string `json:"error"` // why recording stopped before the trace did; empty: it did not

	Hits []figures.Hits `json:"hits"` // of every probe
	// After is events that came when the recording was over, while holders were read: the probes have emitted them too.
	After uint64 `json:"after_end,omitempty"`
	// LostAfter is events that were lost then: of Lost, or of Hits.
	LostAfter uint64 `json:"lost_after_end,omitempty"`
	// Lost is events of the process that were lost, in the recording of one of a job: Hits are those of all processes then. nil: Hits
	// are its own, and tell.
	Lost             *uint64 `json:"lost,omitempty"`
	StackRecordsLost uint64  `json:"stack_records_lost"`
	// StacksOverLimit counts events whose stack was dropped because the limit of different stacks was reached.
	StacksOverLimit uint64 `json:"stacks_over_limit,omitempty"`
	// RawStacks counts the stacks that the kernel could not unwind; nil: there were none.
	RawStacks *figures.RawStacks `json:"raw_stacks,omitempty"`
	Checks    *figures.Checks    `json:"checks"`  // nil: the live set was not compared with the allocator state
	Memory    *Memory            `json:"memory"`  // nil: not asked for
	Sources   []Source           `json:"sources"` // the lines that hold memory
	// Holders is the holders of the live blocks at the end and, if more was live then, at the highest moment that was scanned.
	Holders []Holders `json:"holders"`
	// Before is the holders of the blocks from before the first event that are in use at the end; nil: not known.
	Before []figures.HeldBefore `json:"held_before,omitempty"`
	// Held is what holds the live blocks of the caching allocator at the end, one by one; nil: not known.
	Held *HeldBlocks `json:"held_blocks,omitempty"`
	// HolderFacts are what readings of holders found beside their names, by name.
	HolderFacts map[string]figures.HolderFacts `json:"holder_facts,omitempty"`
	// Garbage is what readings of holders found that waited for Python's cycle collector; nil: none.
	Garbage *figures.Garbage `json:"garbage,omitempty"`
	// NoHolders says why no Python could be read, so that holders are not known; empty: one was, or it was not tried.
	NoHolders string `json:"no_holders,omitempty"`
	// Verdict is what the session said at its end of whether memory grows; empty: it did not look.
	Verdict string `json:"verdict,omitempty"`
	// Libraries is Info.Libraries with what was loaded since.
	Libraries []string `json:"libraries"`
}

// The reasons for the end of a recording, as they are written to files.
const (
	ReasonStopped = "stopped"
	ReasonExited  = "target_exited"
	ReasonExeced  = "target_execed" // it became another program
)

// Memory is the driver's and the allocator's figures of the process at the end.
type Memory struct {
	Torch     []figures.TorchMemory `json:"torch"`
	TorchWhy  string                `json:"torch_why"` // why Torch is not known; empty: it is
	Driver    []figures.DriverUse   `json:"driver"`
	Stats     []figures.MemoryStats `json:"stats,omitempty"` // what the allocator itself counts; nil: not known
	DriverWhy string                `json:"driver_why"`
	Moved     bool                  `json:"moved"` // the driver's figures changed while the allocator state was read
	Whole     bool                  `json:"whole"` // the process had no device memory before the attach
}

// Holders is blocks of the caching allocator by site and holder, at one moment.
type Holders struct {
	Title string   `json:"title"` // what the blocks are
	Bytes uint64   `json:"bytes"` // of all of them
	Rows  []Holder `json:"rows"`  // by bytes, largest first; the first 10,000
}

// Holder is blocks that were allocated at one site and had one holder.
type Holder struct {
	Site   string `json:"born"`
	Name   string `json:"name"`   // of the holder; empty in Where and Holder when it is not known
	Where  string `json:"where"`  // the frame, thread or module that Name begins with
	Holder string `json:"holder"` // Name without it
	What   string `json:"what"`   // categories
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// HeldBlocks is what holds blocks, one by one: the largest 100,000.
type HeldBlocks struct {
	Holders []string    `json:"holders"` // what several blocks have in common
	Blocks  []HeldBlock `json:"blocks"`  // by bytes, largest first
}

// HeldBlock is a block of the caching allocator and what holds it.
type HeldBlock struct {
	Addr     uint64 `json:"addr"`
	Time     uint64 `json:"time"`               // of the allocation, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	Bytes    uint64 `json:"bytes"`              // of the block
	Holder   int    `json:"holder"`             // number in Holders
	Name     string `json:"name,omitempty"`     // its own; empty: that of the holder
	Category string `json:"category,omitempty"` // what it is for; empty: the holder does not say
}

// Source is the text of one line of a Python file.
type Source struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"`
}
