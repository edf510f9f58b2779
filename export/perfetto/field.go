// SPDX-License-Identifier: Apache-2.0

package perfetto

// The numbers of the fields and values that are written, as perfetto_trace.proto has them (protos/perfetto/trace of Perfetto
// v59.1). TestPython compares what is written with the definitions of Perfetto's own Python package.
const (
	tracePacket = 1

	packetClockSnapshot   = 6
	packetTimestamp       = 8
	packetSequence        = 10
	packetTrackEvent      = 11
	packetInterned        = 12
	packetFlags           = 13
	packetProfile         = 37
	packetDefaults        = 59
	packetTrackDescriptor = 60
	packetAttributes      = 126

	flagCleared = 1 // the sequence's interned data begin here
	flagNeeds   = 2 // the packet needs them

	defaultsTrackEvent = 11

	trackUUID          = 1
	trackName          = 2
	trackProcess       = 3
	trackThread        = 4
	trackParent        = 5
	trackCounter       = 8
	trackChildOrdering = 11
	trackRank          = 12

	orderExplicit = 3 // by rank

	processPID     = 1
	processCmdline = 2
	processName    = 6
	threadPID      = 1
	threadTID      = 2
	threadName     = 5

	counterUnit      = 3
	counterShare     = 7 // tracks of one parent with the same key have one scale
	counterUnitBytes = 3

	eventCategory        = 3
	eventAnnotation      = 4
	eventType            = 9
	eventName            = 10
	eventTrack           = 11
	eventCounterValue    = 30
	eventDoubleValue     = 44 // counter: its value
	eventFlow            = 47
	eventFlowEnd         = 48
	eventCallstack       = 56
	eventCallstackWeight = 57

	typeBegin   = 1
	typeEnd     = 2
	typeInstant = 3
	typeCounter = 4

	annotationName    = 1
	annotationBool    = 2
	annotationUint    = 3
	annotationInt     = 4
	annotationDouble  = 5
	annotationText    = 6
	annotationPointer = 7

	internedCategories      = 1
	internedEventNames      = 2
	internedAnnotationNames = 3
	internedFunctions       = 5
	internedFrames          = 6
	internedCallstacks      = 7
	internedBuildIDs        = 16
	internedMappingPaths    = 17
	internedSourcePaths     = 18
	internedMappings        = 19

	internedIID  = 1 // of all of them
	internedText = 2 // of all that are strings

	frameFunction = 2
	frameMapping  = 3
	frameRelPC    = 4
	frameSource   = 5
	frameLine     = 6
	frameKind     = 7

	kindNative      = 1
	kindInterpreted = 3

	callstackFrame = 2 // outermost first

	mappingBuildID = 2
	mappingPath    = 7

	profileDump  = 5
	profileIndex = 7

	dumpPID          = 1
	dumpSample       = 2
	dumpTimestamp    = 9 // on the coarse monotonic clock
	dumpHeapName     = 11
	dumpInterval     = 12
	dumpOrigInterval = 13

	sampleCallstack  = 1
	sampleAllocated  = 2
	sampleFreed      = 3
	sampleAllocCount = 5
	sampleFreeCount  = 6

	snapshotClock   = 1
	snapshotPrimary = 2
	clockID         = 1
	clockTimestamp  = 2

	clockRealtime        = 1
	clockMonotonicCoarse = 4
	clockBoottime        = 6

	attributesAttribute = 1
	attributeKey        = 1
	attributeInt        = 2
	attributeText       = 3
)
