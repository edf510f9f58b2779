// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCodeLayouts(t *testing.T) {
	tables := map[lineFormat][]byte{
		linePairs:     {4, 1, 6, 0x80, 2, 3},
		lineOldPairs:  {0, 1, 4, 5, 6, 0xfe},
		lineLocations: {0x80 | 11<<3 | 1, 0, 5, 0x80 | 15<<3 | 2, 0x80 | 13<<3, 6},
	}
	for i := range layouts {
		l := &layouts[i]
		t.Run(l.String(), func(t *testing.T) {
			r := &Runtime{layout: l}
			m := codeImage(l, "f", "C.f", "/a/b.py", 10, tables[l.lines])
			c, err := r.Code(m, addrCode)
			require.NoError(t, err)
			assert.Equal(t, "f", c.Name)
			assert.Equal(t, "/a/b.py", c.Filename)
			assert.Equal(t, 10, c.FirstLine)
			assert.False(t, c.Hidden)
			start := uint64(0)
			if l.desc.CodeStart == NoField {
				assert.Equal(t, "f", c.Qualname)
			} else {
				assert.Equal(t, "C.f", c.Qualname)
				start = addrCode + uint64(l.desc.CodeStart)
			}
			var got []int
			for unit := range uint64(7) {
				switch {
				case start != 0:
					unit = start + 2*unit
				case l.lines == lineOldPairs:
					unit *= 2
				}
				got = append(got, c.Line(unit))
			}
			want := []int{11, 11, 0, 0, 0, 14, 0}
			if l.lines == lineOldPairs { // every instruction has a line there
				want = []int{11, 11, 16, 16, 16, 14, 14}
			}
			assert.Equal(t, want, got)
		})
	}
}

// Line at the edges of what a frame may hold.
func TestLineEdges(t *testing.T) {
	runs := []lineRun{{end: 3, line: 7}}
	byIndex := &Code{FirstLine: 5, runs: runs}
	byPointer := &Code{FirstLine: 5, runs: runs, start: 0x7000}
	byByte := &Code{FirstLine: 5, runs: runs, inBytes: true}
	for _, row := range []struct {
		code  *Code
		instr uint64
		want  int
	}{
		{byIndex, 0, 7}, {byIndex, 2, 7}, {byIndex, 3, 0}, {byIndex, 1<<31 - 1, 0},
		{byIndex, 0xffffffff, 5}, {byIndex, ^uint64(0), 5}, {byIndex, 0xfffffffe, 0},
		{byByte, 0, 7}, {byByte, 5, 7}, {byByte, 6, 0}, {byByte, 0xffffffff, 5}, {byByte, 0xfffffffd, 0},
		{byPointer, 0x7000, 7}, {byPointer, 0x7005, 7}, {byPointer, 0x7006, 0}, {byPointer, ^uint64(0), 0},
		{byPointer, 0x6ffe, 5}, {byPointer, 0x6ffc, 0}, {byPointer, 0, 0},
	} {
		assert.Equal(t, row.want, row.code.Line(row.instr), "%#x, start %#x", row.instr, row.code.start)
	}
}

// The worked values of Objects/locations.md: 63 is one byte, 200 is 0x48 0x03, and the sign is the lowest bit.
func TestSignedVarint(t *testing.T) {
	for _, row := range []struct {
		b    []byte
		want int
	}{
		{[]byte{62}, 31}, {[]byte{63}, -31}, {[]byte{0x48, 0x03}, 100}, {[]byte{0x49, 0x03}, -100}, {nil, 0}, {[]byte{0x40}, 0},
		{[]byte{0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0x03}, 1<<31 - 1},
		{[]byte{0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f}, -(1<<35 - 1)},
	} {
		assert.Equal(t, row.want, signedVarint(row.b), "% x", row.b)
	}
}

func TestDecodeText(t *testing.T) {
	wide := func(width int, points ...uint32) []byte {
		var out []byte
		for _, p := range points {
			var b [4]byte
			binary.LittleEndian.PutUint32(b[:], p)
			out = append(out, b[:width]...)
		}
		return out
	}
	for _, row := range []struct {
		data  []byte
		width int
		cut   bool
		want  string
	}{
		{nil, 1, false, ""},
		{wide(1, 'a', 0xe9), 1, false, "aé"},
		{wide(2, 0x4e2d, 'x'), 2, false, "中x"},
		{wide(4, 0x1f40d), 4, false, "🐍"},
		{wide(2, 0xdcc3, 0xdca9), 2, false, "é"}, // bytes of a file name that Python could not decode
		{wide(2, 'a', 0xdcff, 'b'), 2, false, "a\uFFFDb"},
		{wide(2, 0xd800), 2, false, "\uFFFD"},
		{wide(4, 0x110000, 0xffffffff), 4, false, "\uFFFD\uFFFD"},
		{wide(1, 'a'), 1, true, "a…"},
	} {
		assert.Equal(t, row.want, decodeText(row.data, row.width, row.cut), "% x", row.data)
	}
}

// Memory that holds something else by now.
func TestCodeErrors(t *testing.T) {
	const huge = 1 << 62
	for _, row := range []struct {
		name   string
		change func(l *layout, m image)
		want   string
	}{
		{"unmapped", func(_ *layout, m image) { delete(m, addrCode) }, "read code object 0x10000"},
		{"no code", func(l *layout, m image) { m.set(addrCode, ObjectType+uint16(l.shift()), addrTypes) },
			`got an object of type "str", want code`},
		{"no type", func(l *layout, m image) { m.set(addrCode, ObjectType+uint16(l.shift()), 0) }, "type of object, want code"},
		{"no type name", func(l *layout, m image) { m.set(addrTypes+0x2000, TypeName+uint16(l.shift()), 1) }, "name of type, want code"},
		{"name is bytes", func(l *layout, m image) { m.set(addrCode, l.codeName, addrTable) },
			`co_name: got an object of type "bytes", want str`},
		{"null name", func(l *layout, m image) { m.set(addrCode, l.codeFilename, 0) }, "co_filename: "},
		{"negative length", func(l *layout, m image) { m.set(addrName, textLength+uint16(l.shift()), 1<<63) }, "length -9223372036854775808"},
		{"kind 3", func(l *layout, m image) { m.set(addrName, textState+uint16(l.shift()), (3|1<<3)<<l.textKind) }, "str of kind 3"},
		{"kind 0", func(l *layout, m image) { m.set(addrName, textState+uint16(l.shift()), 0) }, "str of kind 0"},
		{"table is str", func(l *layout, m image) { m.set(addrCode, l.codeLineTable, addrName) },
			`co_linetable: got an object of type "str", want bytes`},
		{"huge table", func(l *layout, m image) { m.set(addrTable, ObjectSize+uint16(l.shift()), huge) }, "want at most 4194304"},
		{"negative table", func(l *layout, m image) { m.set(addrTable, ObjectSize+uint16(l.shift()), ^uint64(0)) }, "bytes of length -1"},
		{"long table", func(l *layout, m image) { m.set(addrTable, ObjectSize+uint16(l.shift()), 1<<20) }, "read 1048576 bytes"},
	} {
		for i := range layouts {
			l := &layouts[i]
			t.Run(row.name+"/"+l.String(), func(t *testing.T) {
				m := codeImage(l, "f", "C.f", "/a/b.py", 10, []byte{2, 0})
				row.change(l, m)
				c, err := (&Runtime{layout: l}).Code(m, addrCode)
				assert.Nil(t, c)
				assert.ErrorContains(t, err, row.want)
			})
		}
	}
}

func TestLongNamesAreCut(t *testing.T) {
	for i := range layouts {
		l := &layouts[i]
		for _, n := range []int{maxName, maxName + 1} {
			name := strings.Repeat("x", n)
			c, err := (&Runtime{layout: l}).Code(codeImage(l, name, name, "f", 1, nil), addrCode)
			require.NoError(t, err)
			want := name
			if n > maxName {
				want = name[:maxName] + "…"
			}
			assert.Equal(t, want, c.Name)
		}
	}
}

// hostile serves a made-up interpreter and, at every other address, one byte over and over; it counts what is asked for.
type hostile struct {
	image
	fill  byte
	asked int
}

func (h *hostile) ReadAt(b []byte, addr uint64) (int, error) {
	h.asked += len(b)
	if n, err := h.image.ReadAt(b, addr); err == nil {
		return n, nil
	}
	for i := range b {
		b[i] = h.fill
	}
	return len(b), nil
}

// poke overwrites bytes of the image: each 6 bytes of the input are which part, where (2), and what (3).
func (m image) poke(input []byte) {
	parts := []uint64{addrCode, addrName, addrQualname, addrFilename, addrTable, addrTypes, addrTypes + 0x1000, addrTypes + 0x2000}
	for ; len(input) >= 6; input = input[6:] {
		if part := m[parts[int(input[0])%len(parts)]]; len(part) > 3 {
			copy(part[int(binary.LittleEndian.Uint16(input[1:]))%len(part):], input[3:6])
		}
	}
}

func FuzzCode(f *testing.F) {
	f.Add(uint8(0), []byte{}, []byte{2, 1, 4, 0x80}, uint64(1), byte(0))
	f.Add(uint8(1), []byte{4, 16, 0, 0xff, 0xff, 0x3f}, []byte{0x80 | 13<<3, 0x7f, 0x7f, 1}, uint64(addrCode+184), byte(0xff))
	f.Add(uint8(2), []byte{1, 16, 0, 0xff, 0xff, 0xff}, []byte{0xf8, 0xff}, ^uint64(0), byte(0x24))
	f.Fuzz(func(t *testing.T, row uint8, pokes, table []byte, instr uint64, fill byte) {
		l := &layouts[int(row)%len(layouts)]
		m := &hostile{image: codeImage(l, "name", "qual.name", "file.py", 3, table), fill: fill}
		m.poke(pokes)
		c, err := (&Runtime{layout: l}).Code(m, addrCode)
		const limit = maxLineTable + 3*4*maxName + 16<<10
		if m.asked > limit {
			t.Fatalf("asked for %d bytes, want at most %d", m.asked, limit)
		}
		if err != nil {
			return
		}
		if got := c.Line(instr); got < 0 || len(c.Name) > 4*maxName+3 {
			t.Fatalf("line %d, name of %d bytes", got, len(c.Name))
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add(byte(linePairs), []byte{4, 1, 6, 0x80, 2, 3}, 10)
	f.Add(byte(lineLocations), []byte{0x80 | 11<<3 | 1, 0, 5, 0x80 | 15<<3 | 2, 0x80 | 13<<3, 6}, 10)
	f.Fuzz(func(t *testing.T, format byte, table []byte, first int) {
		c := &Code{runs: lineFormat(format).decode(table, int(int32(first)))}
		from := uint32(0)
		for i, run := range c.runs {
			if run.end < from || run.line < 0 || i > 0 && run.line == c.runs[i-1].line {
				t.Fatalf("run %d of %+v", i, c.runs)
			}
			if run.end > from && c.Line(uint64(run.end-1)) != int(run.line) {
				t.Fatalf("line of unit %d is %d, want %d", run.end-1, c.Line(uint64(run.end-1)), run.line)
			}
			from = run.end
		}
	})
}
