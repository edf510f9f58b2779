// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Addresses of the made-up interpreter's types and code objects.
const (
	addrProven  = 0x600000 // type objects, 0x1000 apart
	addrMembers = 0x680000 // their members, 0x1000 apart
	addrCodes   = 0x700000 // 0x1000 apart
)

// typeImage has the types of a version as they describe themselves, and finds them by their symbols.
func typeImage(l *layout) (image, func(string) (uint64, bool)) {
	m, symbols, shift := image{}, map[string]uint64{}, uint16(l.shift())
	for i, p := range l.provenTypes() {
		at, members := addrProven+0x1000*uint64(i), addrMembers+0x1000*uint64(i)
		symbols[p.symbol] = at
		m[at], m[members] = make([]byte, 0x400), make([]byte, 0x800)
		m.set(at, TypeName+shift, at+0x300)
		copy(m[at][0x300:], p.name)
		m.set(at, TypeBasicSize+shift, p.basic)
		m.set(at, TypeMembers+shift, members)
		row, text := uint16(MemberSize), uint16(0x600) // behind a member of no interest
		m.set(members, 0, members+uint64(text)-8)
		m[members][text-8] = 'x'
		for name, offset := range p.members {
			m.set(members, row, members+uint64(text))
			m.set(members, row+MemberOffset, uint64(offset))
			copy(m[members][text:], name)
			row, text = row+MemberSize, text+32
		}
	}
	return m, func(name string) (uint64, bool) { at, ok := symbols[name]; return at, ok }
}

func TestProveTypes(t *testing.T) {
	for i := range layouts {
		l := &layouts[i]
		t.Run(l.String(), func(t *testing.T) {
			m, find := typeImage(l)
			r := &Runtime{layout: l}
			require.NoError(t, r.proveTypes(m, find))
			code, _ := find("PyCode_Type")
			assert.Equal(t, code, r.types[typeCode].Load())

			for _, row := range otherRows {
				other := *l
				row.change(&other)
				var fault *LayoutError
				err := (&Runtime{layout: &other}).proveTypes(m, find)
				require.ErrorAs(t, err, &fault, row.want)
				assert.ErrorContains(t, err, row.want)
			}
		})
	}
}

// otherRows are rows with one other offset, and what is said of them.
var otherRows = []struct {
	want   string
	change func(*layout)
}{
	{"PyCode_Type: co_filename is at", func(l *layout) { l.codeFilename += 8 }},
	{"PyCode_Type: co_name is at", func(l *layout) { l.codeName -= 8 }},
	{"PyCode_Type: co_firstlineno is at", func(l *layout) { l.codeFirstLine += 4 }},
	{"PyCode_Type: co_l", func(l *layout) { l.codeLineTable += 8 }}, // co_linetable, co_lnotab
	{"PyUnicode_Type: tp_basicsize", func(l *layout) { l.compactSize += 8 }},
	{"PyUnicode_Type: its name is", func(l *layout) { l.desc.ObjectHead += 8 }},
	{"tp_basicsize", func(l *layout) { l.frameBasic += 8; l.generatorBasic += 8 }},
	{"PyCode_Type: tp_basicsize", func(l *layout) {
		if l.codeBasic += 8; l.desc.CodeStart != NoField {
			l.desc.CodeStart += 8
		}
	}},
}

// What the process may have instead of the types.
func TestProveTypesOfOthers(t *testing.T) {
	for i := range layouts {
		l := &layouts[i]
		shift := uint16(l.shift())
		for want, change := range map[string]func(m image, code uint64){
			"read ":                       func(m image, code uint64) { delete(m, code) },
			`its name is "", want "code"`: func(m image, code uint64) { m.set(code, TypeName+shift, 8) },
			`its name is "cod", want`:     func(m image, code uint64) { m[code][0x303] = 0 },
			"is at 0 (0: nowhere), want":  func(m image, code uint64) { m.set(code, TypeMembers+shift, 0) },
			"tp_basicsize is 1, want":     func(m image, code uint64) { m.set(code, TypeBasicSize+shift, 1) },
			"(0: nowhere), want":          func(m image, code uint64) { clear(m[code+addrMembers-addrProven]) },
		} {
			m, find := typeImage(l)
			code, _ := find("PyCode_Type")
			change(m, code)
			err := (&Runtime{layout: l}).proveTypes(m, find)
			assert.ErrorContains(t, err, want, l)
		}
		m, _ := typeImage(l)
		err := (&Runtime{layout: l}).proveTypes(m, func(string) (uint64, bool) { return 0, false })
		assert.ErrorContains(t, err, "no symbol PyUnicode_Type")
	}
}

// provenStack is a thread with three frames of code objects, the last of which ends its activation.
func provenStack(l *layout) (*Runtime, image) {
	codes, entry := []uint64{addrCodes, addrCodes + 0x1000, addrCodes + 0x2000}, func(i int) byte { return byte(i / 2) }
	if l.desc.Entry == EntryShim {
		codes, entry = append(codes, 0), func(i int) byte { return byte(i / 3 * 3) }
	}
	m := stackImage(l, codes, entry)
	for _, code := range codes[:3] {
		m[code] = make([]byte, 512)
		m.set(code, uint16(ObjectType+l.shift()), addrProven)
	}
	r := &Runtime{Address: addrRuntime, layout: l, Descriptor: l.desc}
	r.types[typeCode].Store(addrProven)
	return r, m
}

func TestProveThreads(t *testing.T) {
	last := func(l *layout) uint64 {
		if l.desc.Entry == EntryShim {
			return addrFrame + 0x3000
		}
		return addrFrame + 0x2000
	}
	for i := range layouts {
		l := &layouts[i]
		t.Run(l.String(), func(t *testing.T) {
			r, m := provenStack(l)
			require.NoError(t, r.proveThreads(m))

			r, m = provenStack(l)
			m.set(addrCodes+0x1000, uint16(ObjectType+l.shift()), addrTypes)
			assert.ErrorContains(t, r.proveThreads(m), "a frame without a code object")

			r, m = provenStack(l)
			delete(m, addrFrame+0x1000)
			assert.ErrorContains(t, r.proveThreads(m), "read frame at 0x501000")

			if l.desc.FrameOwner != NoField {
				r, m = provenStack(l)
				m[last(l)][l.desc.FrameOwner] = 0
				m.set(last(l), l.desc.FrameCode, addrCodes)
				assert.ErrorContains(t, r.proveThreads(m), "does not end an activation")
			}
			if l.tstateNativeID != NoField {
				r, m = provenStack(l)
				m.set(addrTState, l.tstateNativeID, maxThreadID+1)
				assert.ErrorContains(t, r.proveThreads(m), "has the thread id 4194305")
			}
			// A thread that runs no Python code proves nothing, and is no fault.
			r, m = provenStack(l)
			at := l.desc.TStateFrame
			if at == NoField {
				m.set(addrFrame-0x1000, l.desc.CFrameFrame, 0)
			} else {
				m.set(addrTState, at, 0)
			}
			assert.NoError(t, r.proveThreads(m))
		})
	}
}

// Without a GIL, a thread of 3.14 may run a copy of the bytecode: its instruction is that of the code object.
func TestCopiedBytecode(t *testing.T) {
	l, ok := layoutOf(Version{Major: 3, Minor: 14, FreeThreaded: true})
	require.True(t, ok)
	const list, copied = 0x780000, 0x790000
	for _, row := range []struct {
		copy uint32
		want uint64
	}{
		{0, copied + 20}, {1, addrCodes + 232 + 20}, {2, copied + 20}, {1 << 31, copied + 20},
	} {
		r, m := provenStack(l)
		m.set(addrCodes, l.desc.CodeCopies, list)
		m.put(list, 2, addrCodes+232, copied)
		m.set(addrFrame, l.desc.FrameInstr, copied+20)
		binary.LittleEndian.PutUint32(m[addrFrame][l.desc.FrameCopy:], row.copy)
		frames, err := r.stack(m, addrTState)
		require.NoError(t, err)
		assert.Equal(t, row.want, frames[0].Instr, "copy %d", row.copy)
	}
}

// From 3.14 on the low bits of a frame's code are the interpreter's own.
func TestTaggedCode(t *testing.T) {
	for i := range layouts {
		l := &layouts[i]
		r, m := provenStack(l)
		m.set(addrFrame, l.desc.FrameCode, addrCodes|3)
		frames, err := r.stack(m, addrTState)
		require.NoError(t, err)
		assert.Equal(t, uint64(addrCodes), frames[0].Code, l)
	}
}

func FuzzProveTypes(f *testing.F) {
	f.Add(uint8(0), []byte{0, 0xf0, 0, 0, 0, 0x68}, byte(0))
	f.Add(uint8(9), []byte{2, 0, 1, 1, 2, 3}, byte('x'))
	f.Fuzz(func(t *testing.T, row uint8, pokes []byte, fill byte) {
		l := &layouts[int(row)%len(layouts)]
		made, find := typeImage(l)
		m := &hostile{image: made, fill: fill}
		var parts []uint64
		for at := range made {
			parts = append(parts, at)
		}
		slices.Sort(parts)
		for in := pokes; len(in) >= 6; in = in[6:] {
			part := made[parts[int(in[0])%len(parts)]]
			copy(part[int(binary.LittleEndian.Uint16(in[1:]))%len(part):], in[3:6])
		}
		_ = (&Runtime{layout: l}).proveTypes(m, find)
		if limit := 4 * maxMembers * (MemberSize + 16) * 2; m.asked > limit {
			t.Fatalf("asked for %d bytes, want at most %d", m.asked, limit)
		}
	})
}
