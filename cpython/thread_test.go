// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Addresses of the made-up interpreter's threads.
const (
	addrRuntime = 0x100000
	addrInterp  = 0x200000
	addrTState  = 0x300000 // 0x1000 apart
	addrTCB     = 0x400000 // 0x1000 apart
	addrFrame   = 0x500000 // 0x1000 apart
)

// variableAt is where a thread has its state from 3.15 on, below its thread pointer.
const variableAt = 0x28

// hasKey reports whether a version keeps the thread states under a pthread key.
func hasKey(l *layout) bool { return l.runtimeKey != NoField }

// threadImage has one interpreter with n threads, linked as a version links them, each with its state under a key,
// or in a variable where the version has it there.
func threadImage(l *layout, n, key int) image {
	m := image{addrRuntime: make([]byte, 4096), addrInterp: make([]byte, 8192)}
	binary.LittleEndian.PutUint64(m[addrRuntime][l.runtimeInterpreters:], addrInterp)
	if hasKey(l) {
		binary.LittleEndian.PutUint64(m[addrRuntime][l.runtimeKey:], uint64(key)<<32|1)
	}
	binary.LittleEndian.PutUint64(m[addrInterp][l.interpThreads:], addrTState)
	for i := range uint64(n) {
		state, tcb := addrTState+0x1000*i, addrTCB+0x1000*i
		m[state], m[tcb] = make([]byte, 1024), make([]byte, 0x900)
		m.set(state, l.tstateInterp, addrInterp)
		m.set(state, l.desc.TStateThreadID, tcb)
		if i > 0 {
			m.set(state, l.tstatePrev, state-0x1000)
			m.set(state-0x1000, l.tstateNext, state)
		}
		m.set(tcb, 0, tcb)
		m.set(tcb, tcbSelf, tcb)
		if hasKey(l) {
			m.set(tcb, uint16(tcbKeys+tsdSize*key+tsdData), state)
			continue
		}
		m[tcb-variablesRead] = make([]byte, variablesRead)
		m.set(tcb-variablesRead, variablesRead-variableAt, state)
	}
	return m
}

func slotOf(key int) uint16 { return uint16(tcbKeys + tsdSize*key + tsdData) }

// blindKey makes the interpreter's own word about its key unusable, as in a build that moved the field.
func blindKey(l *layout, m image) { m.set(addrRuntime, uint16(l.runtimeKey), 77) }

func TestSlot(t *testing.T) {
	const key = 3
	for _, row := range []struct {
		name   string
		change func(l *layout, m image)
		want   uint16
	}{
		{"plain", func(*layout, image) {}, slotOf(key)},
		{"no key", blindKey, slotOf(key)},
		{"a thread that has not run Python yet", func(l *layout, m image) {
			blindKey(l, m)
			m.set(addrTCB+0x1000, slotOf(key), 0)
		}, slotOf(key)},
		{"a thread that is gone", func(l *layout, m image) {
			blindKey(l, m)
			delete(m, addrTCB+0x1000)
		}, slotOf(key)},
		{"a state that no thread runs", func(l *layout, m image) {
			m.set(addrTState+0x2000, l.desc.TStateThreadID, 0)
		}, slotOf(key)},
		{"two states of one thread", func(l *layout, m image) {
			m.set(addrTState+0x1000, l.desc.TStateThreadID, addrTCB)
		}, slotOf(key)},
		{"a copy in every thread", func(l *layout, m image) {
			blindKey(l, m)
			for i := range uint64(3) {
				m.set(addrTCB+0x1000*i, slotOf(9), addrTState+0x1000*i)
			}
		}, slotOf(key)},
		{"a copy in every thread, below", func(l *layout, m image) {
			for i := range uint64(3) {
				m.set(addrTCB+0x1000*i, slotOf(1), addrTState+0x1000*i)
			}
		}, slotOf(key)},
		{"a lower copy in one thread", func(l *layout, m image) {
			blindKey(l, m)
			m.set(addrTCB, slotOf(1), addrTState)
		}, slotOf(key)},
		{"a lower slot that one thread uses otherwise", func(l *layout, m image) {
			blindKey(l, m)
			for i := range uint64(3) {
				m.set(addrTCB+0x1000*i, slotOf(1), addrTState+0x1000*i)
			}
			m.set(addrTCB+0x1000, slotOf(1), addrTState)
		}, slotOf(key)},
	} {
		for i := range layouts {
			l := &layouts[i]
			if !hasKey(l) {
				continue
			}
			t.Run(row.name+"/"+l.String(), func(t *testing.T) {
				m := threadImage(l, 3, key)
				row.change(l, m)
				got, err := (&Runtime{Address: addrRuntime, layout: l}).proveSlot(m)
				require.NoError(t, err)
				assert.Equal(t, slot{int64(row.want), NoField}, got)
			})
		}
	}
}

func TestSlotErrors(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(l *layout, m image)
		want   string
	}{
		{"not started", func(l *layout, m image) { m.set(addrRuntime, uint16(l.runtimeInterpreters), 0) }, "no thread states"},
		{"no threads", func(l *layout, m image) { m.set(addrInterp, uint16(l.interpThreads), 0) }, "no thread states"},
		{"cycle", func(l *layout, m image) { m.set(addrTState+0x2000, l.tstateNext, addrTState) }, "thread state 0x300000 has"},
		{"own successor", func(l *layout, m image) { m.set(addrTState, l.tstateNext, addrTState) }, "thread state 0x300000 has"},
		{"foreign", func(l *layout, m image) { m.set(addrTState+0x1000, l.tstateInterp, 5) }, "has interpreter 0x5"},
		{"interpreter cycle", func(l *layout, m image) {
			m.set(addrInterp, uint16(l.interpNext), addrInterp)
			m.set(addrInterp, uint16(l.interpThreads), 0)
		}, "more than 1024 interpreters"},
		{"no control block", func(_ *layout, m image) {
			for i := range uint64(3) {
				m.set(addrTCB+0x1000*i, tcbSelf, 1)
			}
		}, "no thread control block"},
		{"no slot", func(_ *layout, m image) {
			for i := range uint64(3) {
				m.set(addrTCB+0x1000*i, slotOf(3), 1)
				delete(m, addrTCB+0x1000*i-variablesRead)
			}
		}, "the thread state"},
	} {
		for i := range layouts {
			l := &layouts[i]
			t.Run(row.name+"/"+l.String(), func(t *testing.T) {
				m := threadImage(l, 3, 3)
				row.change(l, m)
				r := &Runtime{Address: addrRuntime, layout: l}
				threads, err := r.Threads(m)
				if err == nil {
					_, err = r.findSlot(m, threads)
				}
				assert.ErrorIs(t, err, ErrNotReady)
				assert.ErrorContains(t, err, row.want)
			})
		}
	}
}

// stackImage links frames as a version does, the leaf first. Shims are by index.
func stackImage(l *layout, codes []uint64, entry func(i int) byte) image {
	m := threadImage(l, 1, 3)
	d := l.desc
	const cframe = addrFrame - 0x1000
	m[cframe] = make([]byte, 64)
	leaf := uint64(addrFrame)
	switch {
	case d.TStateFrame != NoField:
		m.set(addrTState, d.TStateFrame, leaf)
	default:
		m.set(addrTState, d.TStateCFrame, cframe)
		m.set(cframe, d.CFrameFrame, leaf)
	}
	for i, code := range codes {
		at := addrFrame + 0x1000*uint64(i)
		m[at] = make([]byte, MaxFrameSize)
		m.set(at, d.FrameInstr, uint64(i+1))
		m.set(at, d.FrameCode, code)
		if i+1 < len(codes) {
			m.set(at, d.FramePrevious, at+0x1000)
		}
		if d.FrameOwner != NoField {
			m[at][d.FrameOwner] = entry(i)
		}
	}
	return m
}

func TestStackEntries(t *testing.T) {
	// Leaf to root: two frames of one activation, then one. From 3.12 on each activation has a shim behind it.
	frames := func(entries ...bool) []pyFrame {
		return []pyFrame{{16, 1, entries[0]}, {24, 2, entries[1]}, {32, 3, entries[2]}}
	}
	for i := range layouts {
		l := &layouts[i]
		codes, want := []uint64{16, 24, 32}, frames(false, true, true)
		entry := func(i int) byte { return map[int]byte{1: 1, 2: 1}[i] }
		switch l.desc.Entry {
		case EntryEach, EntryCode:
			want = frames(true, true, true)
		case EntryShim:
			codes = []uint64{16, 24, 99, 32, 98}
			entry = func(i int) byte { return map[int]byte{0: 1, 2: 3, 4: 4}[i] }
			want[2].Instr = 4
		}
		r := &Runtime{Address: addrRuntime, layout: l, Descriptor: l.desc}
		m := stackImage(l, codes, entry)
		got, err := r.stack(m, addrTState)
		require.NoError(t, err)
		assert.Equal(t, want, got, l)

		// A frame that cannot be read ends the walk; what was read stays.
		delete(m, addrFrame+0x1000)
		got, err = r.stack(m, addrTState)
		assert.ErrorContains(t, err, "read frame at 0x501000")
		assert.Len(t, got, 1)

		m = stackImage(l, codes, entry)
		m.set(addrFrame, l.desc.FramePrevious, addrFrame)
		got, err = r.stack(m, addrTState)
		assert.ErrorContains(t, err, "more than 65536 frames")
		assert.LessOrEqual(t, len(got), maxFrames)
	}
}

func FuzzThreads(f *testing.F) {
	f.Add(uint8(0), []byte{0, 32, 0, 1, 2, 3}, byte(0))
	f.Add(uint8(3), []byte{2, 8, 0, 0, 0x10, 0x30}, byte(0xff))
	f.Fuzz(func(t *testing.T, row uint8, pokes []byte, fill byte) {
		l := &layouts[int(row)%len(layouts)]
		m := &hostile{image: threadImage(l, 3, 3), fill: fill}
		parts := []uint64{addrRuntime, addrInterp, addrTState, addrTState + 0x1000, addrTState + 0x2000, addrTCB, addrTCB + 0x1000}
		for in := pokes; len(in) >= 6; in = in[6:] {
			part := m.image[parts[int(in[0])%len(parts)]]
			copy(part[int(binary.LittleEndian.Uint16(in[1:]))%len(part):], in[3:6])
		}
		r := &Runtime{Address: addrRuntime, layout: l, Descriptor: l.desc}
		threads, err := r.Threads(m)
		if err != nil {
			return
		}
		at, err := r.findSlot(m, threads)
		if err != nil {
			return
		}
		held := false
		for _, th := range threads {
			var b [8]byte
			m.ReadAt(b[:], th.Handle+uint64(at.offset))
			if at.block != NoField {
				m.ReadAt(b[:], binary.LittleEndian.Uint64(b[:])+uint64(at.block))
			}
			held = held || binary.LittleEndian.Uint64(b[:]) == th.State
		}
		if !held {
			t.Fatalf("slot %+v holds the state of none of %+v", at, threads)
		}
	})
}

func FuzzDebugOffsets(f *testing.F) {
	row, _ := layoutOf(Version{Major: 3, Minor: 13})
	f.Add(debugTable(row))
	f.Fuzz(func(t *testing.T, table []byte) {
		got, err := row.withDebugOffsets(image{0x1000: table}, 0x1000)
		if err == nil && (got.desc.FrameSize > MaxFrameSize || got.codeSize() > maxSmallOffset+8 || got.interpNext >= maxLargeOffset) {
			t.Fatalf("out of bounds: %+v", got)
		}
	})
}
