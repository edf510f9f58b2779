// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bufio"
	"encoding/binary"
	"math"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/words"
)

// Opcodes of pickle protocol 2 (CPython, Lib/pickletools.py), of those that the viewer's own reader in MemoryViz.js knows.
const (
	opProto       = '\x80'
	opMark        = '('
	opEmptyDict   = '}'
	opEmptyList   = ']'
	opAppends     = 'e'
	opSetItems    = 'u'
	opTuple2      = '\x86'
	opBinInt      = 'J'
	opBinInt1     = 'K'
	opBinInt2     = 'M'
	opLong1       = '\x8a'
	opBinUnicode  = 'X'
	opBinPut      = 'q'
	opLongBinPut  = 'r'
	opBinGet      = 'h'
	opLongBinGet  = 'j'
	opNewTrue     = '\x88'
	opNewFalse    = '\x89'
	opStop        = '.'
	protocol      = 2
	maxAppends    = 1000 // the viewer hands a batch to a function, as arguments
	maxShortIndex = math.MaxUint8
)

// pickler writes one value. Errors are left to its bufio.Writer, which keeps the first.
type pickler struct {
	w    *bufio.Writer
	memo map[any]uint32 // where a text, or what has a key of another type, was stored by a put opcode
}

func newPickler(w *bufio.Writer) *pickler {
	p := &pickler{w: w, memo: map[any]uint32{}}
	p.op(opProto, protocol)
	return p
}

func (p *pickler) op(b ...byte) { p.w.Write(b) }

func (p *pickler) stop() { p.op(opStop) }

// indexed writes an opcode that has a short form for small indices.
func (p *pickler) indexed(short, long byte, i uint32) {
	if i <= maxShortIndex {
		p.op(short, byte(i))
		return
	}
	p.w.Write(binary.LittleEndian.AppendUint32([]byte{long}, i))
}

// noKey is the key of the list without frames.
type noKey struct{}

// once writes a value the first time and refers to it from then on. Its number is the next when it is complete, as readers
// expect that count.
func (p *pickler) once(key any, write func()) {
	if i, ok := p.memo[key]; ok {
		p.indexed(opBinGet, opLongBinGet, i)
		return
	}
	write()
	i := uint32(len(p.memo))
	p.memo[key] = i
	p.indexed(opBinPut, opLongBinPut, i)
}

// text writes a text. It comes from the program: what is no UTF-8 in it is replaced.
func (p *pickler) text(s string) {
	s = words.Valid(s)
	p.once(s, func() {
		p.w.Write(binary.LittleEndian.AppendUint32([]byte{opBinUnicode}, uint32(len(s))))
		p.w.WriteString(s)
	})
}

func (p *pickler) integer(n uint64) {
	switch {
	case n <= math.MaxUint8:
		p.op(opBinInt1, byte(n))
	case n <= math.MaxUint16:
		p.op(opBinInt2, byte(n), byte(n>>8))
	case n <= math.MaxInt32:
		p.w.Write(binary.LittleEndian.AppendUint32([]byte{opBinInt}, uint32(n)))
	default:
		p.long(n)
	}
}

// long writes two's complement in as few bytes as hold the number and its sign.
func (p *pickler) long(n uint64) {
	b := binary.LittleEndian.AppendUint64(nil, n)
	b = append(b, 0)
	for len(b) > 1 && b[len(b)-1] == 0 && b[len(b)-2] < 0x80 {
		b = b[:len(b)-1]
	}
	p.op(opLong1, byte(len(b)))
	p.w.Write(b)
}

func (p *pickler) boolean(v bool) {
	if v {
		p.op(opNewTrue)
		return
	}
	p.op(opNewFalse)
}

// list writes n values in batches.
func (p *pickler) list(n int, value func(i int)) {
	p.op(opEmptyList)
	for i := 0; i < n; {
		p.op(opMark)
		for end := min(i+maxAppends, n); i < end; i++ {
			value(i)
		}
		p.op(opAppends)
	}
}

// item is a key of a dict, and what writes its value.
type item struct {
	key   string
	value func()
}

func (p *pickler) dict(items ...item) {
	p.op(opEmptyDict, opMark)
	for _, i := range items {
		p.text(i.key)
		i.value()
	}
	p.op(opSetItems)
}

func (p *pickler) pair(x, y uint64) {
	p.integer(x)
	p.integer(y)
	p.op(opTuple2)
}

// noFrames writes one list without frames that all share.
func (p *pickler) noFrames() {
	p.once(noKey{}, func() { p.op(opEmptyList) })
}

// number, text and flag make items of the commonest kinds.
func (p *pickler) number(key string, n uint64) item { return item{key, func() { p.integer(n) }} }
func (p *pickler) word(key, s string) item          { return item{key, func() { p.text(s) }} }
func (p *pickler) flag(key string, v bool) item     { return item{key, func() { p.boolean(v) }} }

// withRequested adds the requested size, where the allocator keeps it: PyTorch 1.13 and its own snapshots do not.
func (p *pickler) withRequested(items []item, requested uint64) []item {
	if requested == event.Unknown {
		return items
	}
	return append(items, p.number("requested_size", requested))
}
