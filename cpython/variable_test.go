// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	addrGetter = 0x700000
	addrBlocks = 0x800000
)

// Functions that return the word at -0x28 below the thread pointer, as compilers and linkers write them.
var getters = map[string]struct {
	code  []byte
	table []int64 // the words at addrGetter + 0x40
}{
	"program":       {code: []byte{0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff, 0xc3}},
	"frame pointer": {code: []byte{0x55, 0x48, 0x89, 0xe5, 0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff, 0x5d, 0xc3}},
	"library": {code: []byte{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05, 0x35, 0, 0, 0, 0x64, 0x48, 0x8b, 0x00, 0xc3},
		table: []int64{-0x28}},
	"relaxed":      {code: []byte{0x48, 0xc7, 0xc0, 0xd8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x00, 0xc3}},
	"with a field": {code: []byte{0x48, 0xc7, 0xc0, 0xd0, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x40, 0x08, 0xc3}},
	"asks": {code: []byte{
		0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x3d, 0x31, 0, 0, 0, 0xe8, 0, 1, 0, 0, 0x5d, 0x48, 0x8b, 0x40, 0x08, 0xc3,
	}, table: []int64{2, 0x10}},
	"asks for one": {code: []byte{
		0x55, 0x66, 0x48, 0x8d, 0x3d, 0x37, 0, 0, 0, 0x66, 0x66, 0x48, 0xe8, 0, 1, 0, 0, 0x48, 0x8b, 0x00, 0x5d, 0xc3,
	}, table: []int64{2, 0x18}},
	"descriptor": {code: []byte{0x48, 0x8d, 0x05, 0x39, 0, 0, 0, 0xff, 0x10, 0x64, 0x48, 0x8b, 0x00, 0xc3},
		table: []int64{addrGetter, -0x28}},
	"another return": {code: []byte{0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 0x0c, 0x25, 0xd8, 0xff, 0xff, 0xff, 0x48, 0x89, 0xc8, 0xc3}},
}

func TestThreadLocal(t *testing.T) {
	for name, g := range getters {
		t.Run(name, func(t *testing.T) {
			code := make([]byte, 0x40)
			copy(code, g.code)
			for _, word := range g.table {
				code = binary.LittleEndian.AppendUint64(code, uint64(word))
			}
			m := image{addrGetter: code, addrTCB: make([]byte, 0x20), addrBlocks: make([]byte, 3*blockSize)}
			m.set(addrTCB, tcbBlocks, addrBlocks)
			m.set(addrBlocks, 2*blockSize, addrTCB-0x40)
			v, ok := threadABI{}.threadLocal(m, addrGetter)
			require.True(t, ok)
			at, ok := v.from(m, addrTCB)
			require.True(t, ok)
			require.EqualValues(t, -variableAt, at)
		})
	}
	for name, code := range map[string][]byte{
		"nothing": {}, "a call": {0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x40, 0x08, 0xc3}, "code that is none": {0x06, 0x64, 0x48, 0x8b, 0x04, 0x25,
			0xd8, 0xff, 0xff, 0xff, 0xc3}, "of 3.14": {0x83, 0x3d, 0, 0, 0, 0, 0, 0x74, 0, 0xc3},
		"no table": {0x48, 0x8b, 0x05, 0, 0x10, 0, 0, 0x64, 0x48, 0x8b, 0x00, 0xc3}, "an unknown register": {0x64, 0x48, 0x8b, 0x00, 0xc3},
	} {
		_, ok := threadABI{}.threadLocal(image{addrGetter: code}, addrGetter)
		require.False(t, ok, name)
	}
	_, ok := threadABI{}.threadLocal(image{}, 0)
	require.False(t, ok)
}

// TestVariable: what the interpreter reads is asked first. Without it the variable that is set in most threads is
// found: one that is set while a thread has the GIL is set in one.
func TestVariable(t *testing.T) {
	l, ok := layoutOf(Version{Major: 3, Minor: 15})
	require.True(t, ok)
	const attached = 0x20 // another variable
	getter := make([]byte, getterCode)
	copy(getter, getters["program"].code)
	set := func(m image, thread, at uint64, word uint64) {
		m.set(addrTCB+0x1000*thread-variablesRead, uint16(variablesRead-at), word)
	}
	for _, row := range []struct {
		name    string
		threads int
		change  func(m image)
		want    int64 // 0: none
	}{
		{"plain", 3, func(image) {}, variableAt},
		{"one has the GIL", 3, func(m image) { set(m, 1, attached, addrTState+0x1000) }, variableAt},
		{"the only one has the GIL", 1, func(m image) {
			set(m, 0, attached, addrTState)
			m[addrGetter] = getter
		}, variableAt},
		{"one has not run Python yet", 3, func(m image) { set(m, 1, variableAt, 0) }, variableAt},
		{"another thread's", 3, func(m image) { set(m, 1, variableAt, addrTState) }, 0},
		{"what is asked is another's", 2, func(m image) {
			set(m, 0, variableAt, 1)
			set(m, 0, 0x80, addrTState)
			m[addrGetter] = getter
		}, 0x80},
		{"far below", 1, func(m image) {
			delete(m, addrTCB-variablesRead)
			m[addrTCB-variablesScan] = make([]byte, variablesScan)
			m.set(addrTCB-variablesScan, 0, addrTState)
		}, variablesScan},
		{"farther, and asked", 1, func(m image) {
			delete(m, addrTCB-variablesRead)
			m[addrTCB-variablesScan-8] = make([]byte, variablesScan+8)
			m.set(addrTCB-variablesScan-8, 0, addrTState)
			m[addrGetter] = binary.LittleEndian.AppendUint32([]byte{0x64, 0x48, 0x8b, 0x04, 0x25}, uint32(0x100000000-variablesScan-8))
			m[addrGetter] = append(m[addrGetter], 0xc3)
		}, variablesScan + 8},
		{"farther", 1, func(m image) {
			delete(m, addrTCB-variablesRead)
			m[addrTCB-variablesScan-8] = make([]byte, variablesScan+8)
			m.set(addrTCB-variablesScan-8, 0, addrTState)
		}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := threadImage(l, row.threads, 0)
			row.change(m)
			r := &Runtime{Address: addrRuntime, layout: l, getter: addrGetter}
			threads, err := r.Threads(m)
			require.NoError(t, err)
			got, err := r.findSlot(m, threads)
			if row.want == 0 {
				require.ErrorIs(t, err, ErrNotReady)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, slot{-row.want, NoField}, got)
		})
	}
}
