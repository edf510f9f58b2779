// SPDX-License-Identifier: Apache-2.0

package event

// ObservedBlock is one block that was read from the allocator state: allocated, and not freed.
type ObservedBlock struct {
	Addr, Size uint64 // bytes
	Requested  uint64 // bytes; Unknown when not known
	Stream     uint64 // raw handle; Unknown when not known
}

// ObservedSegment is one segment that was read from the allocator state.
type ObservedSegment struct {
	Addr, Size uint64 // bytes; of an expandable segment, a contiguously mapped part
	Expandable bool   // it is mapped page by page
}

// Observation is one reading of a device's allocator state while the program runs. It is not of one moment: each block is as it
// was at some moment between From and To. A block that was allocated all that time is in it.
type Observation struct {
	PID      uint32
	Device   Device
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, as in the events
	Blocks   []ObservedBlock
	Segments []ObservedSegment // nil, with Reserved unknown: they were not read
	// Allocated and Reserved are the allocator's own totals, bytes, when they were the same at From and at To; else
	// Unknown.
	Allocated, Reserved uint64
}

// Loss is events that happened and were not received.
type Loss struct {
	From, To uint64 // between these times, CLOCK_BOOTTIME nanoseconds, as in the events
	Events   uint64
}

// Steps is steps of a process that have begun. They are of the last numbering that there is: when it becomes clear that a step begins
// with something else, they are numbered anew.
type Steps struct {
	Numbering int      // from 1 on
	Source    string   // by what they were recognised, as steps.Source
	On        string   // what a step begins with, for people
	Chosen    string   // the function that was chosen for it; empty: none was
	First     int      // number of the first of Begins, from 1 on
	Begins    []uint64 // CLOCK_BOOTTIME nanoseconds, ascending
}

// Held is what holds the blocks of some sites, read while the program runs.
type Held struct {
	Time uint64 // of the reading, CLOCK_BOOTTIME nanoseconds
	Rows []HeldRow
}

// HeldRow is blocks of one site with one holder.
type HeldRow struct {
	Site   string // as view.Site.Name
	Holder string // empty: not known
	Bytes  uint64
	Blocks uint64
}

// AnnotationKind says what an annotation is.
type AnnotationKind uint8

// The kinds of annotations are written to files: never renumber.
const (
	AnnotationWatch      AnnotationKind = 1 // the live set remembers from here on what changes in PID, for an observation to come
	AnnotationUnwatch    AnnotationKind = 2 // the end of AnnotationWatch
	AnnotationObserved   AnnotationKind = 3 // the live set was reconciled with Observation
	AnnotationBaseline   AnnotationKind = 4 // the allocator state of Device had Allocated and Reserved before the first event
	AnnotationFromStart  AnnotationKind = 5 // the events of PID begin before it first used the GPU
	AnnotationCheckpoint AnnotationKind = 6 // State is the result of all events and annotations before
	AnnotationLost       AnnotationKind = 7 // Loss: events of PID are missing
	AnnotationSteps      AnnotationKind = 8 // Steps of PID have begun. It is no input of the live set
	AnnotationHeld       AnnotationKind = 9 // Held: what holds blocks of PID. It is no input of the live set
	// AnnotationReading is a Reading: what the driver and the memory of PID said. It is no input of the live set.
	AnnotationReading AnnotationKind = 10
)

var annotationNames = map[AnnotationKind]string{
	AnnotationWatch: "watch", AnnotationUnwatch: "unwatch", AnnotationObserved: "observed", AnnotationBaseline: "baseline",
	AnnotationFromStart: "from_start", AnnotationCheckpoint: "checkpoint", AnnotationLost: "lost",
	AnnotationSteps: "steps", AnnotationHeld: "held",
	AnnotationReading: "reading",
}

func (k AnnotationKind) String() string { return name(annotationNames, k, "annotation") }

// Annotation is what a recording has beside the events: an input of the live set that is not an event, or what was found out. Replaying events and annotations in their order leads to the same
// live set.
type Annotation struct {
	Kind                AnnotationKind
	PID                 uint32 // not of a checkpoint; of an observation, the same as there
	Device              Device // of a baseline
	Allocated, Reserved uint64 // of a baseline, bytes; Unknown when not known
	Observation         *Observation
	Loss                Loss
	Steps               *Steps
	Held                *Held
	Reading             []byte // JSON of a figures.Reading
	State               []byte // of a checkpoint: as package heap encoded it
}

// Replayable is a source of events and annotations.
type Replayable interface {
	Source
	// Annotations returns, once each, the annotations between the events of the last Read and those of the next.
	Annotations() []Annotation
}
