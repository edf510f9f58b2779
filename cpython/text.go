// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
)

// Offsets that all versions with a GIL share (Include/object.h, Include/cpython/object.h, .../bytesobject.h,
// .../unicodeobject.h, Include/structmember.h), bytes. Without a GIL an object has a longer head, and what is behind it moves by as
// much: see layout.shift.
const (
	ObjectType    = 8    // PyObject.ob_type
	ObjectSize    = 16   // PyVarObject.ob_size
	TypeName      = 24   // PyTypeObject.tp_name
	TypeBasicSize = 32   // PyTypeObject.tp_basicsize
	TypeFlags     = 168  // PyTypeObject.tp_flags
	TypeMembers   = 0xf0 // PyTypeObject.tp_members
	BytesHeader   = 32   // offsetof(PyBytesObject, ob_sval)
	MemberSize    = 0x28 // sizeof(PyMemberDef): name, type, offset, flags, doc
	MemberOffset  = 16   // PyMemberDef.offset

	textLength = 16 // PyASCIIObject.length, code points
	textState  = 32 // PyASCIIObject.state: interned, kind 3 bits, compact 1, ascii 1
	maxMembers = 256
)

// shift is how much longer the head of an object is than in a build with a GIL, bytes.
func (l *layout) shift() uint64 { return uint64(l.desc.ObjectHead) - 16 }

// wantedType is a type that is expected somewhere.
type wantedType int

const (
	typeStr wantedType = iota
	typeBytes
	typeCode
	typeCount
)

// wantedTypes tells each type by its name or, where subclasses are good as well, by Py_TPFLAGS_*_SUBCLASS
// (Include/object.h).
var wantedTypes = [typeCount]struct {
	name string
	flag uint64
}{
	typeStr:   {"str", 1 << 28},
	typeBytes: {"bytes", 1 << 27},
	typeCode:  {"code", 0},
}

// checkType checks the type of the object that starts with b. The address of a type's own object is kept, once its name
// was read: str, bytes and code are static and do not move.
func (r *Runtime) checkType(mem process.Memory, b []byte, want wantedType) error {
	shift := r.layout.shift()
	typ := binary.LittleEndian.Uint64(b[ObjectType+shift:])
	if typ != 0 && typ == r.types[want].Load() {
		return nil
	}
	w := &wantedTypes[want]
	if want == typeCode && r.types[want].Load() != 0 {
		return fmt.Errorf("got an object of type %#x, want %s: of another interpreter, or freed", typ, w.name)
	}
	t, err := read(mem, typ, int(TypeFlags+shift)+8)
	if err != nil {
		return fmt.Errorf("type of object, want %s: %w", w.name, err)
	}
	name, err := cString(mem, binary.LittleEndian.Uint64(t[TypeName+shift:]))
	if err != nil {
		return fmt.Errorf("name of type, want %s: %w", w.name, err)
	}
	if name == w.name {
		r.types[want].Store(typ)
		return nil
	}
	if binary.LittleEndian.Uint64(t[TypeFlags+shift:])&w.flag == 0 {
		return fmt.Errorf("got an object of type %q, want %s", name, w.name)
	}
	return nil
}

// cString reads the start of a C string: enough to tell a type.
func cString(mem process.Memory, addr uint64) (string, error) {
	var b [16]byte
	n, err := mem.ReadAt(b[:], addr)
	n = max(0, min(n, len(b)))
	if end := bytes.IndexByte(b[:n], 0); end >= 0 {
		return string(b[:end]), nil
	}
	if err != nil {
		return "", fmt.Errorf("read string at %#x: %w", addr, err)
	}
	return string(b[:]), nil
}

// guess is how much is read of an object whose size is not known yet: most need no second read.
const guess = 256

// bytes reads a bytes object.
func (r *Runtime) bytes(mem process.Memory, addr uint64) ([]byte, error) {
	shift := r.layout.shift()
	head, err := readFront(mem, addr, int(BytesHeader+shift), guess)
	if err != nil {
		return nil, err
	}
	if err := r.checkType(mem, head, typeBytes); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint64(head[ObjectSize+shift:])
	if size > maxLineTable {
		return nil, fmt.Errorf("bytes of length %d, want at most %d", int64(size), maxLineTable)
	}
	return readRest(mem, addr, head, addr+BytesHeader+shift, int(size))
}

// text reads a str: see PyASCIIObject in Include/cpython/unicodeobject.h (PEP 393). It is cut after maxName code points.
func (r *Runtime) text(mem process.Memory, addr uint64) (string, error) {
	head, err := readFront(mem, addr, int(r.layout.asciiSize), guess)
	if err != nil {
		return "", err
	}
	if err := r.checkType(mem, head, typeStr); err != nil {
		return "", err
	}
	length := binary.LittleEndian.Uint64(head[textLength+r.layout.shift():])
	kind := int(r.textState(head) & 7)
	if kind != 1 && kind != 2 && kind != 4 || int64(length) < 0 {
		return "", fmt.Errorf("str of kind %d and length %d", kind, int64(length))
	}
	at, err := r.textData(head, addr)
	if err != nil {
		return "", err
	}
	data, err := readRest(mem, addr, head, at, int(min(length, maxName))*kind)
	if err != nil {
		return "", err
	}
	return decodeText(data, kind, length > maxName), nil
}

// readFront reads at least want bytes, and up to most where the mapping goes on.
func readFront(mem process.Memory, addr uint64, want, most int) ([]byte, error) {
	b := make([]byte, most)
	n, err := mem.ReadAt(b, addr)
	if n < want || n > most {
		return nil, fmt.Errorf("read %d bytes at %#x: %w", want, addr, err)
	}
	return b[:n], nil
}

// readRest reads n bytes at an address, or takes them from the front of the object at addr when they are in it.
func readRest(mem process.Memory, addr uint64, front []byte, at uint64, n int) ([]byte, error) {
	if from := at - addr; from <= uint64(len(front)) && uint64(n) <= uint64(len(front))-from {
		return front[from:][:n], nil
	}
	return read(mem, at, n)
}

// textState is PyASCIIObject.state from its kind on.
func (r *Runtime) textState(head []byte) uint32 {
	return binary.LittleEndian.Uint32(head[textState+r.layout.shift():]) >> r.layout.textKind
}

// textData is where the code points of a str are: behind its header or, in an instance of a subclass, elsewhere.
func (r *Runtime) textData(head []byte, addr uint64) (uint64, error) {
	compact, ascii := r.textState(head)>>3&1 == 1, r.textState(head)>>4&1 == 1
	switch {
	case compact && ascii:
		return addr + uint64(r.layout.asciiSize), nil
	case compact:
		return addr + uint64(r.layout.compactSize), nil
	case len(head) >= int(r.layout.compactSize)+8:
		return binary.LittleEndian.Uint64(head[r.layout.compactSize:]), nil
	default:
		return 0, fmt.Errorf("str at %#x: header cut off", addr)
	}
}

// decodeText turns code points of the given width into UTF-8. Python keeps a byte of a file name that it could not decode
// as U+DC80 to U+DCFF (PEP 383): these become bytes again, and what then is no UTF-8 becomes U+FFFD.
func decodeText(data []byte, width int, cut bool) string {
	out := make([]byte, 0, len(data)+len(data)/4+3)
	for ; len(data) >= width; data = data[width:] {
		var c rune
		switch width {
		case 1:
			c = rune(data[0])
		case 2:
			c = rune(binary.LittleEndian.Uint16(data))
		default:
			c = rune(min(binary.LittleEndian.Uint32(data), utf8.MaxRune+1))
		}
		if c >= 0xdc80 && c <= 0xdcff {
			out = append(out, byte(c))
			continue
		}
		out = utf8.AppendRune(out, c)
	}
	s := words.Valid(string(out))
	if cut {
		s += "…"
	}
	return s
}
