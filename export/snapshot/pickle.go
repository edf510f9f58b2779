//go:build linux

package snapshot

import (
	"bufio"
	"encoding/binary"
	"math"

	"github.com/gputrace/gputrace/analysis"
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
	emptyFrames   = "\x00frames"
	maxShortIndex = math.MaxUint8
)

// pickler writes one value. Errors are left to its bufio.Writer, which keeps the first.
type pickler struct {
	w    *bufio.Writer
	memo map[string]uint32 // where a text was stored by a put opcode
	held *analysis.Holders // nil: blocks have no frames
}

func newPickler(w *bufio.Writer) *pickler {
	p := &pickler{w: w, memo: map[string]uint32{}}
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

// once writes a value the first time and refers to it from then on.
func (p *pickler) once(key string, write func()) {
	if i, ok := p.memo[key]; ok {
		p.indexed(opBinGet, opLongBinGet, i)
		return
	}
	i := uint32(len(p.memo))
	p.memo[key] = i
	write()
	p.indexed(opBinPut, opLongBinPut, i)
}

func (p *pickler) text(s string) {
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

// noFrames writes one list without frames that all share. Its key is no text of ours.
func (p *pickler) noFrames() {
	p.once(emptyFrames, func() { p.op(opEmptyList) })
}

// number, text and flag make items of the commonest kinds.
func (p *pickler) number(key string, n uint64) item { return item{key, func() { p.integer(n) }} }
func (p *pickler) word(key, s string) item          { return item{key, func() { p.text(s) }} }
func (p *pickler) flag(key string, v bool) item     { return item{key, func() { p.boolean(v) }} }
