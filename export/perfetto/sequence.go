// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"encoding/binary"
	"encoding/hex"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// sequence is a row of packets with interned data of its own: what is named once is a number from then on.
type sequence struct {
	id    uint64
	begun bool
	track uint64 // of its events, unless they say another; 0: they do

	texts    map[textKey]uint64
	mappings map[mappingKey]uint64
	frames   map[frameKey]uint64
	stacks   map[string]uint64   // by the numbers of their frames
	known    map[labelKey]uint64 // the same, by where they are from
	pending  message             // InternedData for the next packet
}

type textKey struct {
	field protowire.Number
	text  string
}

type mappingKey struct{ path, build uint64 }

type frameKey struct {
	function, mapping, relPC, source, line, kind uint64
}

func newSequence(id, track uint64) *sequence {
	return &sequence{
		id: id, track: track, texts: map[textKey]uint64{}, mappings: map[mappingKey]uint64{}, frames: map[frameKey]uint64{},
		stacks: map[string]uint64{}, known: map[labelKey]uint64{},
	}
}

// text is the number of a string. What becomes the same text has the same number.
func (s *sequence) text(field protowire.Number, text string) uint64 {
	text = words.Valid(text)
	key := textKey{field, text}
	iid, ok := s.texts[key]
	if !ok {
		iid = uint64(len(s.texts) + 1)
		s.texts[key] = iid
		at := s.pending.open(field)
		s.pending.number(internedIID, iid)
		s.pending.text(internedText, text)
		s.pending.close(at)
	}
	return iid
}

// labelKey is what tells stacks apart.
type labelKey struct {
	stack  event.StackID
	origin heap.Origin
	name   string // what is no site
}

// callstack is the number of a stack, whose labels are made once.
func (s *sequence) callstack(key labelKey, labels func() []view.Label) uint64 {
	iid, ok := s.known[key]
	if !ok {
		iid = s.addStack(labels())
		s.known[key] = iid
	}
	return iid
}

func (s *sequence) addStack(labels []view.Label) uint64 {
	var key []byte
	for i := len(labels) - 1; i >= 0; i-- { // outermost first
		key = binary.AppendUvarint(key, s.frame(&labels[i]))
	}
	iid, ok := s.stacks[string(key)]
	if !ok {
		iid = uint64(len(s.stacks) + 1)
		s.stacks[string(key)] = iid
		at := s.pending.open(internedCallstacks)
		s.pending.number(internedIID, iid)
		for rest := key; len(rest) > 0; {
			frame, n := binary.Uvarint(rest)
			s.pending.number(callstackFrame, frame)
			rest = rest[n:]
		}
		s.pending.close(at)
	}
	return iid
}

// Mappings of frames that are in no object file. Perfetto needs one for every frame.
const (
	unknownMapping = "[unknown]"
	namedMapping   = "[gputrace]"
)

// frame is the number of a frame. Perfetto tells frames apart by mapping, pc and name: a Python frame has its file for a
// mapping and its line for a pc.
func (s *sequence) frame(l *view.Label) uint64 {
	key := frameKey{function: s.text(internedFunctions, l.Text)}
	switch f := l.Frame; {
	case f == nil:
		key.mapping = s.mapping(namedMapping, "")
	case f.Kind == event.FramePython:
		key.mapping, key.kind = s.mapping(f.File, ""), kindInterpreted
		key.line = uint64(uint32(max(0, f.Line)))
		key.relPC = key.line
		key.source = s.text(internedSourcePaths, f.File)
	default:
		key.mapping, key.relPC, key.kind = s.mapping(unknownMapping, ""), f.Addr, kindNative
		if m := f.Module; m != nil {
			key.mapping, key.relPC = s.mapping(m.Path, m.BuildID), f.Offset
		}
	}
	return s.addFrame(key)
}

func (s *sequence) addFrame(key frameKey) uint64 {
	iid, ok := s.frames[key]
	if ok {
		return iid
	}
	iid = uint64(len(s.frames) + 1)
	s.frames[key] = iid
	at := s.pending.open(internedFrames)
	s.pending.number(internedIID, iid)
	s.pending.number(frameFunction, key.function)
	s.pending.number(frameMapping, key.mapping)
	s.pending.number(frameRelPC, key.relPC)
	for _, f := range []struct {
		field protowire.Number
		value uint64
	}{{frameSource, key.source}, {frameLine, key.line}, {frameKind, key.kind}} {
		if f.value != 0 {
			s.pending.number(f.field, f.value)
		}
	}
	s.pending.close(at)
	return iid
}

// mapping is the number of a file. Where it is mapped is left out: Perfetto then takes it for the same one in all sequences,
// and the addresses are relative to the file.
func (s *sequence) mapping(path, buildID string) uint64 {
	key := mappingKey{path: s.text(internedMappingPaths, path)}
	if raw, err := hex.DecodeString(buildID); err == nil && len(raw) > 0 {
		key.build = s.buildID(string(raw))
	}
	iid, ok := s.mappings[key]
	if ok {
		return iid
	}
	iid = uint64(len(s.mappings) + 1)
	s.mappings[key] = iid
	at := s.pending.open(internedMappings)
	s.pending.number(internedIID, iid)
	if key.build != 0 {
		s.pending.number(mappingBuildID, key.build)
	}
	s.pending.number(mappingPath, key.path)
	s.pending.close(at)
	return iid
}

// buildID is the number of a build id, whose bytes are no text.
func (s *sequence) buildID(raw string) uint64 {
	key := textKey{internedBuildIDs, raw}
	iid, ok := s.texts[key]
	if !ok {
		iid = uint64(len(s.texts) + 1)
		s.texts[key] = iid
		at := s.pending.open(internedBuildIDs)
		s.pending.number(internedIID, iid)
		s.pending.bytes(internedText, []byte(raw))
		s.pending.close(at)
	}
	return iid
}
