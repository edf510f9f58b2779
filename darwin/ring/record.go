// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// fields takes fields from a record's body. What is not there is 0, and noted.
type fields struct {
	rest  []byte
	short bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.rest) {
		f.short = true
		return make([]byte, min(max(n, 0), 8))
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) u64() uint64 { return binary.LittleEndian.Uint64(f.take(8)) }
func (f *fields) u32() uint32 { return binary.LittleEndian.Uint32(f.take(4)) }

// text takes bytes as they are; what is no UTF-8 is replaced.
func (f *fields) text(n uint32) string {
	if int64(n) > int64(len(f.rest)) {
		f.short = true
		return ""
	}
	return strings.ToValidUTF8(string(f.take(int(n))), "\uFFFD")
}

func (f *fields) err(what string) error {
	if f.short {
		return fmt.Errorf("ring: %s is too short", what)
	}
	return nil
}

// Event is the event of a record of that type.
func (r *Record) Event() (Event, error) {
	f := fields{rest: r.body}
	e := Event{
		Hook: Hook(r.What), Time: f.u64(), Thread: f.u64(), Object: f.u64(), Requested: f.u64(), Size: f.u64(), Heap: f.u64(), Offset: f.u64(),
		Stack: f.u64(), Flags: f.u64(), Allocated: f.u64(),
	}
	if e.Hook >= hookCount {
		return e, fmt.Errorf("ring: an event of hook %d, which is not known", e.Hook)
	}
	return e, f.err("an event")
}

// Stack is the stack of a record of that type.
func (r *Record) Stack() (*Stack, error) {
	f := fields{rest: r.body}
	s := &Stack{Python: Python(r.What), ID: f.u64()}
	native, python := int64(f.u32()), int64(f.u32())
	if native*8+python*frameBytes > int64(len(f.rest)) {
		return nil, fmt.Errorf("ring: a stack of %d and %d frames in %d bytes", native, python, len(f.rest))
	}
	for range native {
		s.Native = append(s.Native, f.u64())
	}
	for range python {
		s.Frames = append(s.Frames, Frame{Code: f.u64(), Instr: f.u64(), Entry: f.u64() != 0})
	}
	return s, f.err("a stack")
}

// Code is the code object of a record of that type.
func (r *Record) Code() (*Code, error) {
	f := fields{rest: r.body}
	c := &Code{ID: f.u64(), Address: f.u64(), FirstLine: int(int32(f.u32()))}
	table := f.u32()
	var bytes, kinds [3]uint32
	for i := range bytes {
		bytes[i], kinds[i] = f.u32(), f.u32()
	}
	c.Minor, c.FreeThreaded = int(f.u32()), f.u32() != 0
	for i, to := range []*string{&c.Qualname, &c.Name, &c.File} {
		if int64(bytes[i]) > int64(len(f.rest)) {
			return nil, fmt.Errorf("ring: a text of %d bytes, %d are left", bytes[i], len(f.rest))
		}
		*to = pythonText(f.take(int(bytes[i])), kinds[i])
	}
	if int64(table) > int64(len(f.rest)) {
		return nil, fmt.Errorf("ring: a line table of %d bytes, %d are left", table, len(f.rest))
	}
	c.LineTable = append([]byte(nil), f.take(int(table))...)
	return c, f.err("a code object")
}

// pythonText is a str of so many bytes a character (PEP 393): Latin-1, UCS-2 or UCS-4.
func pythonText(b []byte, kind uint32) string {
	var out []rune
	for n := int(kind); len(b) >= n && n > 0; b = b[n:] {
		switch n {
		case 1:
			out = append(out, rune(b[0]))
		case 2:
			out = append(out, rune(binary.LittleEndian.Uint16(b)))
		case 4:
			out = append(out, rune(binary.LittleEndian.Uint32(b)))
		default:
			return ""
		}
	}
	for i, c := range out {
		if !utf8.ValidRune(c) || utf16.IsSurrogate(c) {
			out[i] = utf8.RuneError
		}
	}
	return string(out)
}

// Symbol is the symbol of a record of that type.
func (r *Record) Symbol() (*Symbol, error) {
	f := fields{rest: r.body}
	s := &Symbol{PC: f.u64(), Base: f.u64(), Start: f.u64()}
	path, name := f.u32(), f.u32()
	s.Path, s.Name = f.text(path), f.text(name)
	return s, f.err("a symbol")
}

// Counters are the figures of a record of that type.
func (r *Record) Counters() (Counters, error) {
	f := fields{rest: r.body}
	c := Counters{f.u64(), f.u64(), f.u64(), f.u64(), f.u64(), f.u64()}
	return c, f.err("a device's figures")
}

// Words are those of a record of that type.
func (r *Record) Words() (Words, error) {
	f := fields{rest: r.body}
	key, value := f.u32(), f.u32()
	w := Words{f.text(key), f.text(value)}
	return w, f.err("words")
}
