// SPDX-License-Identifier: Apache-2.0

// Package figures has the figures that a recording contains beside its events: the counters of the probes, the outcome
// of stacks and checks, and the memory that the driver and the allocator reported at the end. Code that counts, writes
// and prints them shares these types. The JSON names are those of the file.
package figures

import (
	"encoding/json"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// Bytes is a size that JSON encodes as null when it is event.Unknown.
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

// Hits counts the outcomes of the runs of one probe. Once the probes are detached, Hits == Emitted + all of Quiet + all
// of Dropped, or something is wrong.
type Hits struct {
	Probe   string            `json:"probe"` // "libc10.so reportMemoryUsageToProfiler", "libcuda.so.1 cuMemFree_v2 return"
	Hits    uint64            `json:"hits"`  // runs
	Emitted uint64            `json:"emitted"`
	Quiet   map[string]uint64 `json:"quiet"`   // runs without an event by design, by reason
	Dropped map[string]uint64 `json:"dropped"` // events that were lost, by reason; reasons with 0 may be present
	// Received is the count on the other side of the ring, and equals Emitted. It is not in a recording.
	Received uint64 `json:"-"`
}

// Lost returns the number of lost events.
func (h *Hits) Lost() uint64 {
	var n uint64
	for _, v := range h.Dropped {
		n += v
	}
	return n
}

// RawStacks counts the stacks that the kernel could not unwind and sent to user space.
type RawStacks struct {
	Sent    uint64 `json:"sent"`    // sent by the kernel: Unwound + Guessed + Partial, when all were read
	Unwound uint64 `json:"unwound"` // unwound to the outermost frame
	Guessed uint64 `json:"guessed"` // unwound to the outermost frame, with guessed frames
	Partial uint64 `json:"partial"` // not unwound to the outermost frame
	// OverRate and NoRoom were not sent, because there were too many per second or because the ring was nearly full.
	// Their events have the frames that the kernel unwound.
	OverRate uint64 `json:"over_rate"`
	NoRoom   uint64 `json:"no_room"`
}

// Add counts a stack that was sent, by its status after unwinding.
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
	Differences uint64 `json:"differences"` // part of Made: found a difference
	Failed      uint64 `json:"failed"`      // impossible because the job never paused long enough
}

// TorchMemory is the caching allocator's memory on one device. Each size may be event.Unknown.
type TorchMemory struct {
	Device        int   `json:"device"` // as the program numbers it
	Reserved      Bytes `json:"reserved"`
	Allocated     Bytes `json:"allocated"`
	Requested     Bytes `json:"requested"` // the part of Allocated that the program asked for
	Pending       Bytes `json:"pending"`   // freed blocks that wait for another stream's work; Unknown: counted in InactiveSplit
	InactiveSplit Bytes `json:"holes"`     // free blocks of segments that are in use
	Free          Bytes `json:"free"`      // segments that are free as a whole
	// Largest is the largest free piece, of InactiveSplit or of Free. 0: not known, or nothing is free.
	Largest Bytes `json:"largest_free,omitempty"`
	// Allocator is whose memory it is.
	Allocator allocator.Allocator `json:"allocator,omitempty"`
}

// DriverUse is the driver's figure of a process's memory on one device. Each size may be event.Unknown.
type DriverUse struct {
	Device int    `json:"device"` // as the program numbers it; -1: not known
	Name   string `json:"name"`   // product name, such as "NVIDIA H200"; empty: not known
	UUID   string `json:"uuid"`   // of the GPU or MIG device; empty: not known
	Used   Bytes  `json:"used"`   // by the process
	Why    string `json:"why"`    // why Used is not known
	Total  Bytes  `json:"total"`  // of the device
	All    Bytes  `json:"all"`    // by all processes
}

// HeldBefore counts blocks of one process and device that were allocated before the first event, by holder.
type HeldBefore struct {
	PID    uint32       `json:"pid"`
	Device event.Device `json:"device"`
	HeldPart
}

// HeldPart counts the blocks of one holder that were allocated before the first event.
type HeldPart struct {
	Holder string `json:"holder"` // as holders.Index.Owner, or view.NoHolder
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"` // 0: not known
}

// Reading is the memory that the driver and a running process reported at one moment. Figures that were not read are nil.
type Reading struct {
	Time    uint64        `json:"time"`             // CLOCK_BOOTTIME nanoseconds
	Failed  uint64        `json:"failed,omitempty"` // time of the refused request that caused it; 0: none
	Driver  []DriverUse   `json:"driver,omitempty"` // by device
	Others  []Processes   `json:"others,omitempty"` // by device
	Moved   bool          `json:"moved,omitempty"`  // the driver's figures changed during the reading
	Private []Range       `json:"private"`          // segments of private pools; null: not read
	Torch   []TorchMemory `json:"torch,omitempty"`  // by device, read at the same moment as Driver
	Limits  []Limit       `json:"limits,omitempty"`
	Sizes   []DeviceSize  `json:"sizes,omitempty"` // known device sizes, as CUDA reported them to the program
	Fresh   bool          `json:"fresh,omitempty"` // the process had no device memory when the trace began
	Held    []HeldAt      `json:"held"`            // nil: holders were not read
	Calls   []HeldAt      `json:"calls,omitempty"` // the part of Held whose lines call libraries, by call
}

// Processes lists the other processes on a device.
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

// Limit is the memory of a device that a process may let its caching allocator reserve. A device has one row for each
// possible value.
type Limit struct {
	Device int   `json:"device"`
	Bytes  Bytes `json:"bytes"`
}

// DeviceSize is the memory of a device as CUDA reported it to the program.
type DeviceSize struct {
	Device int   `json:"device"`
	Bytes  Bytes `json:"bytes"`
}

// HeldAt counts live blocks of one site with one holder.
type HeldAt struct {
	Site   string `json:"site"`
	Call   string `json:"call,omitempty"` // of Reading.Calls: what the site calls, as view.Site.Call
	Holder string `json:"holder"`
	What   string `json:"what"` // categories of the blocks
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}
