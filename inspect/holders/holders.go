// SPDX-License-Identifier: Apache-2.0

// Package holders names the holders of GPU memory: for every live block of PyTorch's caching allocator and of CuPy's pool, the
// tensors whose storage it is, or the arrays in it, and a path to them from a module, a frame or a thread of the Python program, or
// through the autograd
// graph. Everything is learnt by reading the process's memory from outside; nothing runs in it.
package holders

import (
	"time"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
)

// Defaults of Options.
const (
	DefaultMaxCopy = 8 << 30  // bytes
	DefaultMaxHeld = 24 << 20 // bytes
	DefaultOthers  = 0
	// DefaultFreeze is a bound of a stop that users of a job hardly notice.
	DefaultFreeze = 250 * time.Millisecond
)

// Options say how a process is read. nil stands for the zero value.
type Options struct {
	// Freeze stops the process for as long as its memory is copied, at most this long from the first stop to the last
	// continue. 0, the default, never stops it: then what changes while it is read is read again, and a name is given only
	// when it holds. When the time is over before all is copied, the report is one of a running process; it says so.
	Freeze time.Duration
	// MaxCopy bounds how much of the memory of a process that is stopped is held in ours, bytes. 0 stands for DefaultMaxCopy. Memory beyond
	// it is left out, and the report says so.
	MaxCopy uint64
	// MaxHeld bounds how much of the memory of a process that runs is held in ours at once, bytes. 0 stands for DefaultMaxHeld. What is needed
	// again later is read again: less takes more time, and loses nothing.
	MaxHeld uint64
	// Others is how many paths are given at most for each block, beside the best one: Block.Others. The number of
	// holders is always counted.
	Others int
	// BFC are the allocators of TensorFlow and JAX in the process. Without them the holders of their blocks are not looked for.
	// Nobody else may use them meanwhile.
	BFC []*bfc.Pool
}

// Report says who holds a process's GPU memory.
type Report struct {
	PID int
	// Python is the interpreter's version, as "3.11.7"; empty when none was found or its layout is not known: see Notes.
	Python string
	// NoPython says why no Python could be read, without a full stop; empty: one was. Holders in Python are not known then.
	NoPython string
	// Torch is the version in the file beside the library, as "2.15.0+cu132"; empty when it is not known.
	Torch string
	// CuPy is the same of CuPy, as "14.2.0".
	CuPy string
	// BFC names TensorFlow or JAX, or both, with their versions, as "JAX 0.10.2"; empty: neither is loaded.
	BFC string
	// Devices are the allocator's own totals at Time.
	Devices []Device
	// Blocks are the live blocks (allocated and pending) of all devices at Time, by device and address: all of them, or where
	// Device.Changing says so those that stood still while they were read.
	Blocks []Block
	// Places are where tensors were found that had been replaced since the memory was read, or whose holders moved. Their blocks need not be
	// among Blocks.
	Places []Place
	// Totals add the blocks up by category, in the order of the categories, those without a block too. What changed while
	// the blocks were read, at least (Changing.BytesLow), is in CategoryChanging. So their bytes sum to the sum of
	// Devices' Active.
	Totals []Total
	// Time is when Blocks were read, CLOCK_BOOTTIME, nanoseconds; their holders were confirmed within Stats.Confirm after it.
	Time uint64
	// Notes say what could not be done, and why: sentences without a full stop, for people. Empty when all went well.
	Notes []string
	Stats Stats
}

// Device is what the allocator itself counts for one device.
type Device struct {
	inspect.DeviceTotals // Reserved is inspect.Unknown of CuPy's pool
	Allocator            allocator.Allocator
	Name                 string // of a BFC allocator; empty: it is not one, or its name is not known
	Host                 bool   // the memory is the host's
	Active               uint64 // bytes of allocated and pending blocks
	// Uncounted: the place of the allocator's own count is not known, and the bytes are the sum of the blocks that were found.
	Uncounted bool
	// Changing bounds what is not in Report.Blocks, because it changed while it was read. nil: nothing did.
	Changing *inspect.Changing
}

// Total is the sum of the blocks of one category.
type Total struct {
	Category Category
	Blocks   int
	Bytes    uint64
}

// Stats say what a report cost.
type Stats struct {
	BytesRead uint64        // read from the process, each time it was read
	BytesHeld uint64        // of it, held in our memory at most
	Objects   int           // Python objects, frames, tensors and autograd nodes that were reached
	Native    int           // C++ objects that were recognised by their class
	Frozen    time.Duration // how long the process was stopped; 0: it was not
	Copy      time.Duration // how long the first reading took: the copy or, of a running process, its memory going by
	Confirm   time.Duration // from Time to the last re-read of a link; 0 when the process was stopped meanwhile
	Elapsed   time.Duration // all of it
}
