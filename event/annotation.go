// SPDX-License-Identifier: Apache-2.0

package event

// ObservedBlock is one allocated block, as read from the allocator state.
type ObservedBlock struct {
	Addr, Size uint64 // bytes
	Requested  uint64 // bytes; Unknown when not known
	Stream     uint64 // raw handle; Unknown when not known
}

// ObservedSegment is one segment, as read from the allocator state.
type ObservedSegment struct {
	Addr, Size uint64 // bytes; for an expandable segment, a contiguously mapped part
	Expandable bool   // mapped page by page
}

// Observation is one reading of a device's allocator state while the program runs. It is not a snapshot of one moment: each
// block was read at some moment between From and To. A block that was allocated during all of that time is included.
type Observation struct {
	PID      uint32
	Device   Device
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, as in the events
	Blocks   []ObservedBlock
	Segments []ObservedSegment // nil, and Reserved Unknown, when they were not read
	// Allocated and Reserved are the allocator's own totals in bytes; Unknown unless they were the same at From
	// and at To.
	Allocated, Reserved uint64
	// Counted is set if Allocated is no older than this time, although blocks may be; 0 means From.
	Counted uint64
	// Allocators is the number of allocators of the device that were read, if there can be several; 0 means 1.
	Allocators uint64
}

// Loss describes events that happened and were not received.
type Loss struct {
	From, To uint64 // the events were lost between these times, CLOCK_BOOTTIME nanoseconds
	Events   uint64
}

// Steps lists steps of a process that have begun. Readers use the latest Numbering: when gputrace finds a better sign of where a
// step begins, it numbers all steps again.
type Steps struct {
	Numbering int      // from 1 on
	Source    string   // how the steps were recognised, as steps.Source
	On        string   // what a step begins with, for people
	Chosen    string   // the function that was chosen for On; empty if none was
	First     int      // number of the first of Begins, from 1 on
	Begins    []uint64 // CLOCK_BOOTTIME nanoseconds, ascending
}

// Held lists the holders of the blocks of some sites, read while the program runs.
type Held struct {
	Time uint64 // time of the reading, CLOCK_BOOTTIME nanoseconds
	Rows []HeldRow
}

// HeldRow counts the blocks of one site that have one holder.
type HeldRow struct {
	Site   string // as view.Site.Name
	Holder string // empty when not known
	Bytes  uint64
	Blocks uint64
}

// AnnotationKind is the kind of an annotation.
type AnnotationKind uint8

// The kinds of annotations are written to files: never renumber.
const (
	AnnotationWatch      AnnotationKind = 1 // the live set starts to log changes in PID, for the observation that follows
	AnnotationUnwatch    AnnotationKind = 2 // ends AnnotationWatch
	AnnotationObserved   AnnotationKind = 3 // the live set was reconciled with Observation
	AnnotationBaseline   AnnotationKind = 4 // the allocator state of Device had Allocated and Reserved before the first event
	AnnotationFromStart  AnnotationKind = 5 // the events of PID begin before its first use of the GPU
	AnnotationCheckpoint AnnotationKind = 6 // State is the result of all events and annotations before
	AnnotationLost       AnnotationKind = 7 // Loss: events of PID are missing
	AnnotationSteps      AnnotationKind = 8 // Steps of PID have begun; does not change the live set
	AnnotationHeld       AnnotationKind = 9 // Held: the holders of blocks of PID; does not change the live set
	// AnnotationReading is a Reading: memory figures of the driver and of PID. It does not change the live set.
	AnnotationReading AnnotationKind = 10
)

var annotationNames = map[AnnotationKind]string{
	AnnotationWatch: "watch", AnnotationUnwatch: "unwatch", AnnotationObserved: "observed", AnnotationBaseline: "baseline",
	AnnotationFromStart: "from_start", AnnotationCheckpoint: "checkpoint", AnnotationLost: "lost",
	AnnotationSteps: "steps", AnnotationHeld: "held",
	AnnotationReading: "reading",
}

func (k AnnotationKind) String() string { return name(annotationNames, k, "annotation") }

// Annotation is an entry of a recording that is not an event: an input of the live set, or a finding. Replaying events and
// annotations in order rebuilds the same live set.
type Annotation struct {
	Kind                AnnotationKind
	PID                 uint32 // unused by a checkpoint; for an observation, the same as in it
	Device              Device // for a baseline
	Allocated, Reserved uint64 // for a baseline, bytes; Unknown when not known
	Observation         *Observation
	Loss                Loss
	Steps               *Steps
	Held                *Held
	Reading             []byte // JSON of a figures.Reading
	State               []byte // for a checkpoint, encoded by package heap
}

// Replayable is a source of events and annotations.
type Replayable interface {
	Source
	// Annotations returns the annotations between the events of the last Read and those of the next. It returns each one
	// once.
	Annotations() []Annotation
}
