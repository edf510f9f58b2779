// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Opcodes of pickle protocols 2 to 5 (CPython, Lib/pickletools.py) that occur in a memory snapshot: those that
// CPython's pickler writes for dicts, lists, tuples, texts, numbers, booleans and None.
const (
	opProto           = 0x80
	opFrame           = 0x95
	opStop            = '.'
	opMark            = '('
	opPop             = '0'
	opPopMark         = '1'
	opNone            = 'N'
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opLong1           = 0x8a
	opBinFloat        = 'G'
	opBinUnicode      = 'X'
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opEmptyList       = ']'
	opAppend          = 'a'
	opAppends         = 'e'
	opList            = 'l'
	opEmptyDict       = '}'
	opSetItem         = 's'
	opSetItems        = 'u'
	opDict            = 'd'
	opEmptyTuple      = ')'
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opTuple           = 't'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opMemoize         = 0x94
	opBinGet          = 'h'
	opLongBinGet      = 'j'
)

// code lists opcodes that make a loader look up or call something.
var code = map[byte]string{
	'c': "GLOBAL", 0x93: "STACK_GLOBAL", 'R': "REDUCE", 'i': "INST", 'o': "OBJ", 'b': "BUILD", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX",
	0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 'P': "PERSID", 'Q': "BINPERSID",
}

// Limits on the content of a pickle.
const (
	maxValues = 1 << 28 // in all containers: 4 GiB of memory; an event of the history has about 20
	maxText   = 16 << 20
	maxMarks  = 1 << 16 // CPython's nesting is limited by its recursion limit
)

// kind is the kind of a value.
type kind uint8

const (
	kindNone kind = iota
	kindBool
	kindInt   // 64 bits, signed
	kindUint  // 64 bits, above the largest signed value
	kindFloat // skipped
	kindText
	kindList
	kindTuple
	kindDict // its container has keys and values alternately
)

var kindNames = [...]string{
	"None", "a boolean", "a number", "a number", "a fraction", "a text", "a list", "a tuple", "a dict",
}

// value is one value, without pointers: bits is a number, or the index of a text or a container.
type value struct {
	kind kind
	bits uint64
}

// pickle is the decoded pickle. Equal texts have one index.
type pickle struct {
	root       value
	texts      []string
	containers [][]value
	values     int // number in all containers
}

// unpickler reads one value. It creates only plain data: it supports no opcode that can name or call anything.
type unpickler struct {
	pickle
	r      *bufio.Reader
	offset int64 // of the next byte
	stack  []value
	marks  []int
	memo   []value
	textAt map[string]uint32
	scrap  []byte
}

// unpickle reads one pickle and nothing after it.
func unpickle(r io.Reader) (*pickle, error) {
	u := &unpickler{r: bufio.NewReaderSize(r, 1<<16), textAt: map[string]uint32{}}
	for {
		at := u.offset
		done, err := u.step()
		switch {
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: it ends early, at byte %d", ErrFormat, u.offset)
		case errors.Is(err, errMalformed):
			return nil, fmt.Errorf("%w: at byte %d: %w", ErrFormat, at, err)
		case err != nil:
			return nil, fmt.Errorf("read a snapshot at byte %d: %w", u.offset, err)
		case done:
			return &u.pickle, nil
		}
	}
}

// errMalformed is wrapped by every error about the bytes themselves.
var errMalformed = errors.New("malformed pickle")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// step executes one opcode, and reports whether it was the last.
func (u *unpickler) step() (bool, error) {
	first := u.offset == 0
	op, err := u.byte()
	switch {
	case err != nil:
		return false, err
	case first && op != opProto:
		return false, malformed("it begins with byte %#02x, want %#02x", op, opProto)
	case op == opStop:
		if len(u.stack) != 1 || len(u.marks) != 0 {
			return false, malformed("%d values at its end, want 1", len(u.stack))
		}
		u.root = u.stack[0]
		return true, nil
	}
	if err := u.scalar(op); !errors.Is(err, errNotMine) {
		return false, err
	}
	if err := u.reference(op); !errors.Is(err, errNotMine) {
		return false, err
	}
	if err := u.container(op); !errors.Is(err, errNotMine) {
		return false, err
	}
	if name := code[op]; name != "" {
		return false, malformed("opcode %s would run code, and no memory snapshot has it", name)
	}
	return false, malformed("opcode %#02x, which no memory snapshot has", op)
}

// errNotMine means that the opcode is of another group.
var errNotMine = errors.New("another opcode")

// scalar executes opcodes for values other than containers, and for framing.
func (u *unpickler) scalar(op byte) error {
	switch op {
	case opProto:
		version, err := u.byte()
		if err == nil && (version < 2 || version > 5) {
			err = malformed("protocol %d, want 2 to 5", version)
		}
		return err
	case opFrame:
		_, err := u.number(8)
		return err
	case opNone:
		return u.push(value{})
	case opNewTrue:
		return u.push(value{kindBool, 1})
	case opNewFalse:
		return u.push(value{kindBool, 0})
	case opBinInt1:
		return u.integer(1)
	case opBinInt2:
		return u.integer(2)
	case opBinInt:
		n, err := u.number(4)
		return u.pushed(value{kindInt, uint64(int64(int32(n)))}, err)
	case opLong1:
		return u.long()
	case opBinFloat:
		n, err := u.number(8)
		return u.pushed(value{kindFloat, n}, err)
	case opShortBinUnicode:
		return u.text(1)
	case opBinUnicode:
		return u.text(4)
	case opBinUnicode8:
		return u.text(8)
	}
	return errNotMine
}

func (u *unpickler) byte() (byte, error) {
	b, err := u.r.ReadByte()
	if err == nil {
		u.offset++
	}
	return b, err
}

// number reads a little-endian number of up to 8 bytes.
func (u *unpickler) number(bytes int) (uint64, error) {
	var b [8]byte
	n, err := io.ReadFull(u.r, b[:bytes])
	u.offset += int64(n)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return binary.LittleEndian.Uint64(b[:]), err
}

func (u *unpickler) integer(bytes int) error {
	n, err := u.number(bytes)
	return u.pushed(value{kindInt, n}, err)
}

// long reads a number in two's complement; its first byte is its length.
func (u *unpickler) long() error {
	size, err := u.byte()
	if err != nil {
		return err
	}
	if size > 9 {
		return malformed("a number of %d bytes, want at most 64 bits", size)
	}
	n, err := u.number(min(int(size), 8))
	if err != nil || size == 0 {
		return u.pushed(value{kindInt, 0}, err)
	}
	if size == 9 {
		high, err := u.byte()
		if err == nil && high != 0 {
			err = malformed("a number of more than 64 bits")
		}
		if n > math.MaxInt64 {
			return u.pushed(value{kindUint, n}, err)
		}
		return u.pushed(value{kindInt, n}, err)
	}
	shift := 64 - 8*uint(size)
	return u.push(value{kindInt, uint64(int64(n<<shift) >> shift)})
}

// text reads a text that follows its length; the length has the given number of bytes.
func (u *unpickler) text(bytes int) error {
	n, err := u.number(bytes)
	if err != nil {
		return err
	}
	if n > maxText {
		return malformed("a text of %d bytes, want at most %d", n, maxText)
	}
	u.scrap = u.scrap[:0]
	for left := int(n); left > 0; { // memory grows with the data, not with the claimed length
		part := min(left, 1<<16)
		at := len(u.scrap)
		u.scrap = append(u.scrap, make([]byte, part)...)
		got, err := io.ReadFull(u.r, u.scrap[at:])
		u.offset += int64(got)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		left -= part
	}
	at, ok := u.textAt[string(u.scrap)]
	if !ok {
		at = uint32(len(u.texts))
		s := string(u.scrap)
		u.texts = append(u.texts, s)
		u.textAt[s] = at
	}
	return u.push(value{kindText, uint64(at)})
}

func (u *unpickler) push(v value) error {
	if len(u.stack)+u.values >= maxValues {
		return malformed("more than %d values", maxValues)
	}
	u.stack = append(u.stack, v)
	return nil
}

// pushed is push, unless there is an error.
func (u *unpickler) pushed(v value, err error) error {
	if err != nil {
		return err
	}
	return u.push(v)
}

// reference executes opcodes for the memo and for the stack itself.
func (u *unpickler) reference(op byte) error {
	switch op {
	case opBinPut:
		return u.put(u.number(1))
	case opLongBinPut:
		return u.put(u.number(4))
	case opMemoize:
		return u.put(uint64(len(u.memo)), nil)
	case opBinGet:
		return u.get(u.number(1))
	case opLongBinGet:
		return u.get(u.number(4))
	case opMark:
		if len(u.marks) >= maxMarks {
			return malformed("more than %d values within each other", maxMarks)
		}
		u.marks = append(u.marks, len(u.stack))
		return nil
	case opPop:
		_, err := u.pop(1)
		return err
	case opPopMark:
		_, err := u.sinceMark()
		return err
	}
	return errNotMine
}

func (u *unpickler) put(i uint64, err error) error {
	switch {
	case err != nil:
		return err
	case len(u.stack) == u.floor():
		return malformed("nothing to be remembered")
	case i > uint64(len(u.memo)): // picklers count upwards
		return malformed("number %d for what is remembered, want at most %d", i, len(u.memo))
	case len(u.memo) >= maxValues:
		return malformed("more than %d values", maxValues)
	}
	v := u.stack[len(u.stack)-1]
	if i == uint64(len(u.memo)) {
		u.memo = append(u.memo, v)
		return nil
	}
	u.memo[i] = v
	return nil
}

func (u *unpickler) get(i uint64, err error) error {
	switch {
	case err != nil:
		return err
	case i >= uint64(len(u.memo)):
		return malformed("number %d of what is remembered was not given", i)
	}
	return u.push(u.memo[i])
}

// floor returns the number of values below the last mark.
func (u *unpickler) floor() int {
	if n := len(u.marks); n > 0 {
		return u.marks[n-1]
	}
	return 0
}

// pop removes n values from the stack. They are valid until the next push.
func (u *unpickler) pop(n int) ([]value, error) {
	at := len(u.stack) - n
	if at < u.floor() {
		return nil, malformed("%d values on the stack, want %d", len(u.stack)-u.floor(), n)
	}
	out := u.stack[at:]
	u.stack = u.stack[:at]
	return out, nil
}

// sinceMark removes the values after the last mark, and the mark, from the stack.
func (u *unpickler) sinceMark() ([]value, error) {
	n := len(u.marks)
	if n == 0 {
		return nil, malformed("no mark")
	}
	out, err := u.pop(len(u.stack) - u.marks[n-1])
	u.marks = u.marks[:n-1]
	return out, err
}

// container executes opcodes for lists, tuples and dicts.
func (u *unpickler) container(op byte) error {
	switch op {
	case opEmptyList:
		return u.add(kindList, nil, nil)
	case opEmptyDict:
		return u.add(kindDict, nil, nil)
	case opEmptyTuple:
		return u.add(kindTuple, nil, nil)
	case opTuple1, opTuple2, opTuple3:
		list, err := u.pop(int(op-opTuple1) + 1)
		return u.add(kindTuple, list, err)
	}
	switch op {
	case opAppend:
		list, err := u.pop(1)
		return u.extend(kindList, list, err)
	case opSetItem:
		list, err := u.pop(2)
		return u.extend(kindDict, list, err)
	case opTuple, opList, opDict, opAppends, opSetItems:
	default:
		return errNotMine
	}
	list, err := u.sinceMark()
	switch op {
	case opTuple:
		return u.add(kindTuple, list, err)
	case opList:
		return u.add(kindList, list, err)
	case opDict:
		return u.add(kindDict, list, err)
	case opAppends:
		return u.extend(kindList, list, err)
	}
	return u.extend(kindDict, list, err)
}

// add pushes a new container.
func (u *unpickler) add(k kind, list []value, err error) error {
	if err != nil {
		return err
	}
	u.containers = append(u.containers, nil)
	u.values += 4 // even an empty container takes memory
	c := value{k, uint64(len(u.containers) - 1)}
	if err := u.fill(c, list); err != nil {
		return err
	}
	return u.push(c)
}

// extend adds values to the container on top of the stack.
func (u *unpickler) extend(k kind, list []value, err error) error {
	if err != nil {
		return err
	}
	if len(u.stack) == u.floor() {
		return malformed("no container to add to")
	}
	c := u.stack[len(u.stack)-1]
	if c.kind != k {
		return malformed("%s to be added to, want %s", kindNames[c.kind], kindNames[k])
	}
	return u.fill(c, list)
}

// fill adds values to a container.
func (u *unpickler) fill(c value, list []value) error {
	if c.kind == kindDict {
		if len(list)%2 != 0 {
			return malformed("a key without a value")
		}
		for i := 0; i < len(list); i += 2 {
			if k := list[i].kind; k > kindText {
				return malformed("%s as a key", kindNames[k])
			}
		}
	}
	u.containers[c.bits] = append(u.containers[c.bits], list...)
	u.values += len(list)
	return nil
}
