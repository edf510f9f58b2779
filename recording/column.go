// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/binary"
	"fmt"
)

// column is a sequence of numbers and bytes: numbers as LEB128 varints, seven bits a byte, low bits first; signed ones in
// zigzag (0, -1, 1, -2 ...).
type column []byte

func (c *column) number(v uint64) { *c = binary.AppendUvarint(*c, v) }

// signed adds a difference of two numbers modulo 2^64.
func (c *column) signed(v uint64) { *c = binary.AppendVarint(*c, int64(v)) }

func (c *column) fixed(v uint64) { *c = binary.LittleEndian.AppendUint64(*c, v) }

func (c *column) text(s string) {
	c.number(uint64(len(s)))
	*c = append(*c, s...)
}

// cursor reads a column. After the first error it returns only zeros.
type cursor struct {
	data []byte
	err  error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
	c.data = nil
}

func (c *cursor) number() uint64 {
	if len(c.data) > 0 && c.data[0] < 0x80 { // most are one byte
		v := c.data[0]
		c.data = c.data[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(c.data)
	if n <= 0 {
		c.fail("a number ends early or has more than 64 bits")
		return 0
	}
	c.data = c.data[n:]
	return v
}

func (c *cursor) signed() uint64 {
	v := c.number()
	return v>>1 ^ -(v & 1)
}

func (c *cursor) fixed() uint64 {
	b := c.bytes(8)
	if len(b) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// bytes returns the next n bytes, which share the column's memory.
func (c *cursor) bytes(n uint64) []byte {
	if n > uint64(len(c.data)) {
		c.fail("%d bytes wanted, %d left", n, len(c.data))
		return nil
	}
	b := c.data[:n]
	c.data = c.data[n:]
	return b
}

func (c *cursor) text() string { return string(c.bytes(c.number())) }

// count reads the number of elements that follow, each of at least size bytes.
func (c *cursor) count(size int) int {
	n := c.number()
	if n > uint64(len(c.data)/size) {
		c.fail("%d things of at least %d bytes, in %d bytes", n, size, len(c.data))
		return 0
	}
	return int(n)
}

// index reads a number below n.
func (c *cursor) index(n int) int {
	v := c.number()
	if v >= uint64(n) {
		c.fail("number %d of %d", v, n)
		return 0
	}
	return int(v)
}
