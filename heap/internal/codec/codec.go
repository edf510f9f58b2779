// SPDX-License-Identifier: Apache-2.0

// Package codec writes and reads a structure with the same code, so that reading cannot differ from writing: each function
// takes a pointer to a value. Writing appends the value; reading (Codec.Load) sets it. Values with several pointers to them
// are written once, in a Table; a pointer is written as its number in the table plus one, or 0 for nil.
package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Codec holds the bytes written so far or, with Load, the bytes left to read. After an error none are left.
type Codec struct {
	Data []byte
	Load bool
	Err  error // the first error
}

// Fail records an error, unless there is one.
func (c *Codec) Fail(format string, args ...any) {
	if c.Err == nil {
		c.Err = fmt.Errorf(format, args...)
	}
	c.Data = nil
}

// Integer is any integer type.
type Integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int32 | ~int64 | ~int
}

// Number writes or reads a varint.
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

// Flags writes or reads booleans as numbers; reading takes any number but 0 as true.
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

// Numbers calls Number for each value.
func (c *Codec) Numbers(list ...*uint64) {
	for _, v := range list {
		Number(c, v)
	}
}

// Fixed writes or reads a value of fixed size, given by pointer: a number or a struct of exported fields.
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

// Text writes or reads a length and bytes.
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

// List writes or reads a length and elements, each of at least one byte.
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

// Map writes or reads the pairs of a map, in any order.
func Map[K comparable, V any](c *Codec, m map[K]V, each func(*K, *V)) {
	keys := slices.Collect(maps.Keys(m))
	List(c, &keys, func(k *K) {
		v := m[*k]
		if each(k, &v); c.Err == nil {
			m[*k] = v
		}
	})
}

// Table holds values that have several pointers to them.
type Table[T any] struct {
	All []*T // by number
	at  map[*T]int
}

// Add adds a value and reports whether it was new; nil is never added.
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

// Pointer writes or reads a pointer to a value that is already in the table. If needed is true, nil is an error.
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
