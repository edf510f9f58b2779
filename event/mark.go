package event

// Observed is one block that was seen in the allocator's books: allocated, and not given back.
type Observed struct {
	Addr, Size uint64 // bytes
	Requested  uint64 // bytes; Unknown when not known
	Stream     uint64 // raw handle; Unknown when not known
}

// ObservedSegment is one segment that was seen in the allocator's books.
type ObservedSegment struct {
	Addr, Size uint64 // bytes; of an expandable segment, a part that is mapped without a gap
	Expandable bool   // it is mapped page by page
}

// Observation is one reading of the books of a device while the program runs: not one moment, but each block as it was at
// some moment between From and To. A block that was there all that time is in it.
type Observation struct {
	PID      uint32
	Device   Device
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, as in the events
	Blocks   []Observed
	Segments []ObservedSegment // nil, with Reserved unknown: they were not looked at
	// Allocated and Reserved are the allocator's own totals, bytes, when they were the same at From and at To; else
	// Unknown.
	Allocated, Reserved uint64
}

// Loss is events that happened and did not come through.
type Loss struct {
	From, To uint64 // between these times, CLOCK_BOOTTIME nanoseconds, as in the events
	Events   uint64
}

// MarkKind says what a mark is.
type MarkKind uint8

// The kinds of marks are written to files: never renumber.
const (
	MarkWatch      MarkKind = 1 // from here on it is remembered what changes in PID, for an observation to come
	MarkUnwatch    MarkKind = 2 // the end of MarkWatch
	MarkObserved   MarkKind = 3 // Observation was joined with what the events said
	MarkBaseline   MarkKind = 4 // the books of Device held Allocated and Reserved before the first event
	MarkFromStart  MarkKind = 5 // the events of PID begin before it first used the GPU
	MarkCheckpoint MarkKind = 6 // State is all that the events and marks before come to
	MarkLost       MarkKind = 7 // Loss: events of PID are missing
)

var markNames = map[MarkKind]string{
	MarkWatch: "watch", MarkUnwatch: "unwatch", MarkObserved: "observed", MarkBaseline: "baseline",
	MarkFromStart: "from_start", MarkCheckpoint: "checkpoint", MarkLost: "lost",
}

func (k MarkKind) String() string { return name(markNames, k, "mark") }

// Mark is what the live set was told between two events, beside them: replaying events and marks in their order leads to
// the same live set.
type Mark struct {
	Kind                MarkKind
	PID                 uint32 // not of a checkpoint; of an observation, the same as there
	Device              Device // of a baseline
	Allocated, Reserved uint64 // of a baseline, bytes; Unknown when not known
	Observation         *Observation
	Loss                Loss
	State               []byte // of a checkpoint: as the package that keeps the live set wrote it
}

// Recorded is a source that also tells the marks.
type Recorded interface {
	Source
	// Marks returns, once each, the marks that come after the events of the last Read and before those of the next.
	Marks() []Mark
}
