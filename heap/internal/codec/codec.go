// SPDX-License-Identifier: Apache-2.0

// Package codec writes and reads a structure by the same code, so that what is read cannot differ from what is written: each
// function takes a pointer to a value. Writing appends the value; reading (Codec.Load) sets it. Values to which several others
// point are written once, in a Table; a pointer to one is its number in the table plus one, 0 for nil.
package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Codec is what was written so far or, with Load, what is left to read. After an error nothing is left.
type Codec struct {
	Data []byte
	Load bool
	Err  error // the first
}

// Fail records an error, unless there is one.
func (c *Codec) Fail(format string, args ...any) {
	if c.Err == nil {
		c.Err = fmt.Errorf(format, args...)
	}
	c.Data = nil
}

// Integer is any type of whole numbers.
type Integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int32 | ~int64 | ~int
}

// Number is a varint.
func Number[T Integer](c *Codec, v *T) {
	if !c.Load {
		c.Data = binary.AppendUvarint(c.Data, uint64(*v))
		return
	}
	got, n := binary.Uvarint(c.Data)
	*v = T(got)
	if n <= 0 || uint64(*v) != got {
		c.Fail("a number ends early or is too large")
		*v = 0
		return
	}
	c.Data = c.Data[n:]
}

// Flags are numbers, of which all but 0 are read as true.
func (c *Codec) Flags(list ...*bool) {
	for _, v := range list {
		n := uint8(0)
		if *v {
			n = 1
		}
		Number(c, &n)
		*v = n != 0
	}
}

// Numbers is Number of each.
func (c *Codec) Numbers(list ...*uint64) {
	for _, v := range list {
		Number(c, v)
	}
}

// Fixed is a pointer to a value of fixed size: a number or a struct of exported fields.
func (c *Codec) Fixed(v any) {
	var err error
	if !c.Load {
		c.Data, err = binary.Append(c.Data, binary.LittleEndian, v)
	} else {
		var n int
		if n, err = binary.Decode(c.Data, binary.LittleEndian, v); err == nil {
			c.Data = c.Data[n:]
		}
	}
	if err != nil {
		c.Fail("%T: %w", v, err)
	}
}

// Text is a length and bytes.
func (c *Codec) Text(v *string) {
	n := len(*v)
	Number(c, &n)
	if !c.Load {
		c.Data = append(c.Data, *v...)
		return
	}
	if n < 0 || n > len(c.Data) {
		c.Fail("a text of %d bytes in %d", n, len(c.Data))
		return
	}
	*v, c.Data = string(c.Data[:n]), c.Data[n:]
}

// List is a length and elements, each of at least one byte.
func List[T any](c *Codec, v *[]T, each func(*T)) {
	n := len(*v)
	Number(c, &n)
	if c.Load {
		if n < 0 || n > len(c.Data) {
			c.Fail("%d elements in %d bytes", n, len(c.Data))
			return
		}
		*v = make([]T, n)
	}
	for i := 0; i < n && c.Err == nil; i++ {
		each(&(*v)[i])
	}
}

// Map is the pairs of a map, in any order.
func Map[K comparable, V any](c *Codec, m map[K]V, each func(*K, *V)) {
	keys := slices.Collect(maps.Keys(m))
	List(c, &keys, func(k *K) {
		v := m[*k]
		if each(k, &v); c.Err == nil {
			m[*k] = v
		}
	})
}

// Table is values that have several pointers to them.
type Table[T any] struct {
	All []*T // by number
	at  map[*T]int
}

// Add adds a value and reports whether it was not there; nil is never added.
func (t *Table[T]) Add(v *T) bool {
	if _, ok := t.at[v]; ok || v == nil {
		return false
	}
	if t.at == nil {
		t.at = map[*T]int{}
	}
	t.at[v] = len(t.All)
	t.All = append(t.All, v)
	return true
}

// Pointer is a pointer to a value of a table: it must be in the table by then. needed: it is not nil.
func Pointer[T any](c *Codec, v **T, t *Table[T], needed bool) {
	n := 0
	if !c.Load && *v != nil {
		n = t.at[*v] + 1
	}
	Number(c, &n)
	if !c.Load {
		return
	}
	if n < 0 || n > len(t.All) || needed && n == 0 {
		c.Fail("number %d of %d", n, len(t.All))
		return
	}
	if n > 0 {
		*v = t.All[n-1]
	}
}
