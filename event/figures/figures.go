// SPDX-License-Identifier: Apache-2.0

// Package figures is what a recording says beside its events: the counters of the probes, how stacks and comparisons fared, what the
// driver and the allocator said at the end. Who counts them, who writes them to a file and who prints them share these types. The
// names in JSON are those of the file.
package figures

import (
	"encoding/json"

	"github.com/gputrace/gputrace/event"
)

// Bytes is a size in JSON, where event.Unknown is null.
type Bytes uint64

// Unknown is a size that is not known.
const Unknown = Bytes(event.Unknown)

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if b == Unknown {
		return []byte("null"), nil
	}
	return json.Marshal(uint64(b))
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*b = Unknown
		return nil
	}
	return json.Unmarshal(text, (*uint64)(b))
}

// Hits is what became of the runs of one probe: Hits == Emitted + all of Quiet + all of Dropped once the probes are detached, or
// something is wrong.
type Hits struct {
	Probe   string            `json:"probe"` // "libc10.so reportMemoryUsageToProfiler", "libcuda.so.1 cuMemFree_v2 return"
	Hits    uint64            `json:"hits"`  // runs
	Emitted uint64            `json:"emitted"`
	Quiet   map[string]uint64 `json:"quiet"`   // runs without an event by design, by reason
	Dropped map[string]uint64 `json:"dropped"` // events that were lost, by reason; reasons with 0 may be present
	// Received, counted on the other side of the ring, equals Emitted. It is not in a recording.
	Received uint64 `json:"-"`
}

// Lost is the number of events that were lost.
func (h *Hits) Lost() uint64 {
	var n uint64
	for _, v := range h.Dropped {
		n += v
	}
	return n
}

// RawStacks counts the stacks that the kernel could not unwind and user space may.
type RawStacks struct {
	Sent    uint64 `json:"sent"`    // by the kernel: Unwound + Guessed + Partial, when all were read
	Unwound uint64 `json:"unwound"` // to the outermost frame
	Guessed uint64 `json:"guessed"` // so, with frames that are a guess
	Partial uint64 `json:"partial"` // not so far
	// OverRate and NoRoom were not sent, because there were too many a second or because the ring was filling up. Their events
	// have the stack as far as the kernel came.
	OverRate uint64 `json:"over_rate"`
	NoRoom   uint64 `json:"no_room"`
}

// Add counts a stack that was sent, by what became of it.
func (c *RawStacks) Add(status event.StackStatus) {
	switch status {
	case event.StatusUnwound:
		c.Unwound++
	case event.StatusGuessed:
		c.Guessed++
	default:
		c.Partial++
	}
}

// Checks counts comparisons of the live set with the allocator state.
type Checks struct {
	Made        uint64 `json:"made"`
	Differences uint64 `json:"differences"` // of Made: those that found a difference
	Failed      uint64 `json:"failed"`      // that could not be made: the job left no moment for it
}

// TorchMemory is the caching allocator's memory on one device. Each size may be event.Unknown.
type TorchMemory struct {
	Device        int   `json:"device"` // as the program numbers it
	Reserved      Bytes `json:"reserved"`
	Allocated     Bytes `json:"allocated"`
	Requested     Bytes `json:"requested"` // of Allocated, what the program asked for
	Pending       Bytes `json:"pending"`   // blocks given back that wait for another stream's work; unknown: they are in InactiveSplit
	InactiveSplit Bytes `json:"holes"`     // free blocks of segments that are in use
	Free          Bytes `json:"free"`      // segments that are free as a whole
	// Largest is the largest free piece, of InactiveSplit or of Free. 0: not known, or nothing is free.
	Largest Bytes `json:"largest_free,omitempty"`
}

// DriverUse is what the driver says that a process uses on one device. Each size may be event.Unknown.
type DriverUse struct {
	Device int    `json:"device"` // as the program numbers it; -1: not known
	Name   string `json:"name"`   // of the product, such as "NVIDIA H200"; empty: not known
	UUID   string `json:"uuid"`   // of the GPU or MIG device; empty: not known
	Used   Bytes  `json:"used"`   // by the process
	Why    string `json:"why"`    // why Used is not known
	Total  Bytes  `json:"total"`  // of the device
	All    Bytes  `json:"all"`    // by all processes
}

// HeldBefore is blocks of one process and device that were allocated before the first event and have one holder.
type HeldBefore struct {
	PID    uint32       `json:"pid"`
	Device event.Device `json:"device"`
	HeldPart
}

// HeldPart is blocks that have one holder, a part of what was allocated before the first event.
type HeldPart struct {
	Holder string `json:"holder"` // as holders.Index.Owner, or view.NoHolder
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"` // 0: not known
}

// Reading is what the driver and a process's memory said at a moment while it ran. What was not read is nil.
type Reading struct {
	Time    uint64        `json:"time"`             // CLOCK_BOOTTIME nanoseconds
	Failed  uint64        `json:"failed,omitempty"` // time of the request that it was made for; 0: of none
	Driver  []DriverUse   `json:"driver,omitempty"` // by device
	Others  []Processes   `json:"others,omitempty"` // by device
	Moved   bool          `json:"moved,omitempty"`  // the driver's figures changed meanwhile
	Private []Range       `json:"private"`          // segments of private pools; null: they were not read
	Torch   []TorchMemory `json:"torch,omitempty"`  // by device, of the same moment as Driver
	Limits  []Limit       `json:"limits,omitempty"`
	Sizes   []DeviceSize  `json:"sizes,omitempty"` // of the devices that are known, as CUDA reported them to the program
	Fresh   bool          `json:"fresh,omitempty"` // the process had no device memory when the trace began
	Held    []HeldAt      `json:"held"`            // nil: holders were not read
}

// Processes are the other processes on a device.
type Processes struct {
	Device int          `json:"device"` // as the program numbers it
	By     []ProcessUse `json:"by"`
}

// ProcessUse is the memory of a process on a device.
type ProcessUse struct {
	PID  uint32 `json:"pid"` // as the driver numbers it
	Used Bytes  `json:"used"`
}

// Range is a segment of a private pool.
type Range struct {
	Device int       `json:"device"`
	Addr   uint64    `json:"addr"`
	Size   uint64    `json:"size"`
	Pool   [2]uint64 `json:"pool"` // its id
}

// Limit is how much a process may let its caching allocator have of a device: a device has a row for each value that can be it.
type Limit struct {
	Device int   `json:"device"`
	Bytes  Bytes `json:"bytes"`
}

// DeviceSize is the memory of a device as CUDA reported it to the program.
type DeviceSize struct {
	Device int   `json:"device"`
	Bytes  Bytes `json:"bytes"`
}

// HeldAt is live blocks of one site with one holder.
type HeldAt struct {
	Site   string `json:"site"`
	Holder string `json:"holder"`
	What   string `json:"what"` // their categories
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}
