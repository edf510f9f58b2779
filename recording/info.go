// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"time"

	"github.com/gputrace/gputrace/event/figures"
)

// Info is the information at the beginning of a recording. An empty string means not known.
type Info struct {
	Gputrace string    `json:"gputrace"` // version that made the recording
	Started  time.Time `json:"started"`  // wall clock
	// StartedBoot is Started on the clock of the events, CLOCK_BOOTTIME nanoseconds.
	StartedBoot uint64 `json:"started_boot_ns"`
	Attached    uint64 `json:"attached_boot_ns"` // time at which the first probe was attached, CLOCK_BOOTTIME nanoseconds

	PID  uint32 `json:"pid"`
	Rank *Rank  `json:"rank,omitempty"` // nil: not part of a job, as far as known
	// Labels describe the process where it ran, such as its pod, by name; nil: none.
	Labels  map[string]string `json:"labels,omitempty"`
	Name    string            `json:"name"` // name of the program; unprintable characters are escaped as in Go
	Exe     string            `json:"exe"`
	Cmdline []string          `json:"cmdline"` // the first arguments
	Python  string            `json:"python"`
	PyTorch string            `json:"pytorch"`
	CUDA    string            `json:"cuda"` // CUDA version that PyTorch was built for
	Driver  string            `json:"driver"`
	Kernel  string            `json:"kernel"` // release
	Memory  string            `json:"memory"` // how memory was read: "memory in place" or "memory copied"; empty: not known
	Hooks   []Hook            `json:"hooks"`
	// Backward is the reason why allocations of the backward pass are not joined to lines of forward; empty if they
	// are, and in older recordings.
	Backward string `json:"backward,omitempty"`
	// Libraries are path prefixes of Python files that do not belong to the program itself.
	Libraries []string `json:"libraries"`
}

// Rank is the place of a process in a job.
type Rank struct {
	Rank  int `json:"rank"`
	Local int `json:"local"` // on the process's host; -1: not known
	World int `json:"world"` // number of ranks of the job; 0: not known
}

// Hook lists the functions of one file that were hooked at the attach.
type Hook struct {
	Library   string `json:"library"` // such as "libcudart"
	File      string `json:"file"`    // path as the program sees it
	Functions int    `json:"functions"`
}

// End is the information at the end of a recording. A recording without it was cut off.
type End struct {
	Reason   string        `json:"reason"` // one of the Reasons
	Duration time.Duration `json:"duration_ns"`
	// Paused is why no thread of the process ran at the end of the recording, for "pid N was ..."; empty: it ran, or
	// that is not known.
	Paused string `json:"paused,omitempty"`
	// ExitStatus is the program's exit status as a shell reports it; nil when it has not ended, or when not known.
	ExitStatus *int `json:"exit_status,omitempty"`
	// NotWritten is the number of events that were not recorded because of Error.
	NotWritten uint64 `json:"not_written"`
	Error      string `json:"error"` // why recording stopped before the trace; empty: it did not

	Hits []figures.Hits `json:"hits"` // for every probe
	// After counts events that arrived after the end of the recording, while holders were read; Hits includes them.
	After uint64 `json:"after_end,omitempty"`
	// LostAfter counts events that were lost in that time; Lost, or Hits, includes them.
	LostAfter uint64 `json:"lost_after_end,omitempty"`
	// Lost counts the process's lost events, if the recording is one of a job, whose Hits cover all processes. nil:
	// Hits are the process's own and include the losses.
	Lost             *uint64 `json:"lost,omitempty"`
	StackRecordsLost uint64  `json:"stack_records_lost"`
	// StacksOverLimit counts events whose stack was dropped because the limit of different stacks was reached.
	StacksOverLimit uint64 `json:"stacks_over_limit,omitempty"`
	// Cost is what tracing cost the process; nil: it was not measured.
	Cost *figures.Cost `json:"cost,omitempty"`
	// RawStacks counts the stacks that the kernel could not unwind; nil: there were none.
	RawStacks *figures.RawStacks `json:"raw_stacks,omitempty"`
	Checks    *figures.Checks    `json:"checks"`  // nil: the live set was not compared with the allocator state
	Memory    *Memory            `json:"memory"`  // nil: not requested
	Sources   []Source           `json:"sources"` // texts of the lines that hold memory
	// Holders are the holders of the live blocks at the end and, if more was live then, at the scanned moment with the most memory.
	Holders []Holders `json:"holders"`
	// Before lists the holders of the blocks from before the first event that are still in use at the end; nil: not known.
	Before []figures.HeldBefore `json:"held_before,omitempty"`
	// Held lists the holders of the caching allocator's live blocks at the end, block by block; nil: not known.
	Held *HeldBlocks `json:"held_blocks,omitempty"`
	// HolderFacts are facts that holder scans found beside the names of holders, by name.
	HolderFacts map[string]figures.HolderFacts `json:"holder_facts,omitempty"`
	// Garbage is memory that holder scans found waiting for Python's cycle collector; nil: none.
	Garbage *figures.Garbage `json:"garbage,omitempty"`
	// NoHolders is why no Python could be read, so that holders are not known; empty: it could, or was not tried.
	NoHolders string `json:"no_holders,omitempty"`
	// Verdict is the session's final sentence on whether memory grows; empty: not determined.
	Verdict string `json:"verdict,omitempty"`
	// Libraries is Info.Libraries and the prefixes of libraries that were loaded since.
	Libraries []string `json:"libraries"`
}

// The reasons for the end of a recording, as they are written to files.
const (
	ReasonStopped = "stopped"
	ReasonExited  = "target_exited"
	ReasonExeced  = "target_execed" // the process became another program
)

// Memory is the driver's and the allocator's figures of the process at the end.
type Memory struct {
	Torch     []figures.TorchMemory `json:"torch"`
	TorchWhy  string                `json:"torch_why"` // why Torch is not known; empty: it is known
	Driver    []figures.DriverUse   `json:"driver"`
	Stats     []figures.MemoryStats `json:"stats,omitempty"` // the allocator's own statistics; nil: not known
	DriverWhy string                `json:"driver_why"`
	Moved     bool                  `json:"moved"` // the driver's figures changed while the allocator state was read
	Whole     bool                  `json:"whole"` // the process had no device memory before the attach
}

// Holders divides the blocks of the caching allocator by site and holder, at one moment.
type Holders struct {
	Title string   `json:"title"` // describes the blocks
	Bytes uint64   `json:"bytes"` // total of all rows
	Rows  []Holder `json:"rows"`  // by bytes, largest first; the first 10,000
}

// Holder counts blocks that were allocated at one site and have one holder.
type Holder struct {
	Site   string `json:"born"`
	Name   string `json:"name"`   // name of the holder; Where and Holder are empty when it is not known
	Where  string `json:"where"`  // the frame, thread or module that Name begins with
	Holder string `json:"holder"` // rest of Name
	What   string `json:"what"`   // categories
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// HeldBlocks lists the holders of single blocks: the largest 100,000.
type HeldBlocks struct {
	Holders []string    `json:"holders"` // common parts, shared by blocks
	Blocks  []HeldBlock `json:"blocks"`  // by bytes, largest first
}

// HeldBlock is a block of the caching allocator and its holder.
type HeldBlock struct {
	Addr     uint64 `json:"addr"`
	Time     uint64 `json:"time"`               // time of the allocation, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	Bytes    uint64 `json:"bytes"`              // size of the block
	Holder   int    `json:"holder"`             // index in Holders
	Name     string `json:"name,omitempty"`     // the block's own name; empty: the holder's
	Category string `json:"category,omitempty"` // purpose of the block; empty: the holder does not determine it
}

// Source is the text of one line of a Python file.
type Source struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"`
}
