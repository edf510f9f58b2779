// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
	"github.com/gputrace/gputrace/unwind"
)

// rawBytes lays a RECORD_RAW out by hand: as a stack, of another type.
func rawBytes(id uint64, words ...uint64) []byte {
	b := stackRecordBytes(uint8(event.StatusBadRule), id, words...)
	b[0] = uint8(bpf.TraceRecordTypeRECORD_RAW)
	return b
}

// rawPageBytes lays a record_raw_page out by hand: type, length, time, id, address, data.
func rawPageBytes(id, addr uint64, length uint16, data int) []byte {
	b := []byte{uint8(bpf.TraceRecordTypeRECORD_RAW_PAGE), 0}
	b = binary.LittleEndian.AppendUint16(b, length)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 1<<40)
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.LittleEndian.AppendUint64(b, addr)
	for i := range data {
		b = append(b, byte(i+1))
	}
	return b
}

// rawWordsOf returns what a RECORD_RAW begins with: a register's number as its value, the partial stack, then more words.
func rawWordsOf(partial uint64, more ...uint64) []uint64 {
	words := make([]uint64, bpf.TraceRawWordRAW_WORDS)
	for i := range words {
		words[i] = uint64(i)
	}
	words[bpf.TraceRawWordRAW_PARTIAL] = partial
	return append(words, more...)
}

func TestParseRawWords(t *testing.T) {
	const code = pythonWord | 0x7000
	for name, c := range map[string]struct {
		more   []uint64
		slots  [][2]uint64
		python []activation
	}{
		"native only":     {},
		"replaced return": {more: []uint64{slotWord | 0x7ff0, 0x401000}, slots: [][2]uint64{{0x7ff0, 0x401000}}},
		"two activations": {
			more:   []uint64{boundaryWord | 0x7f00, code, 1, code + 8, 1<<64 - 1, boundaryWord, code, 3},
			python: []activation{{0x7f00, []uint64{code, 1, code + 8, 1<<64 - 1}}, {0, []uint64{code, 3}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := parseRawWords(rawWordsOf(99, c.more...))
			require.NoError(t, err)
			require.EqualValues(t, 99, r.partial)
			for i, v := range r.regs[:bpf.TraceRawWordRAW_PARTIAL] {
				require.EqualValues(t, i, v)
			}
			require.Equal(t, c.slots, r.slots)
			require.Equal(t, c.python, r.python)
		})
	}
	for name, words := range map[string][]uint64{
		"registers cut": rawWordsOf(1)[:5], "slot cut": rawWordsOf(1, slotWord|8), "frame cut": rawWordsOf(1, boundaryWord, code),
		"frame without a boundary": rawWordsOf(1, code, 2), "no mark": rawWordsOf(1, 0x1000, 2),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseRawWords(words)
			require.ErrorIs(t, err, errRawWords)
		})
	}
}

// TestMergePython: an activation goes behind the native frame on whose part of the stack it lies.
func TestMergePython(t *testing.T) {
	frames := []unwind.StackFrame{{PC: 1, SP: 0x100, CFA: 0x200}, {PC: 2, Caller: true, SP: 0x200, CFA: 0x300},
		{PC: 3, Caller: true, SP: 0x300, CFA: 0x300}}
	first, second := []uint64{pythonWord | 8, 1}, []uint64{pythonWord | 16, 2}
	for name, c := range map[string]struct {
		at   [2]uint64
		want []uint64
		loop []cpython.Range
	}{
		"each in its frame":     {[2]uint64{0x100, 0x2ff}, []uint64{1, pythonWord | 8, 1, 2, pythonWord | 16, 2, 3}, nil},
		"two in one":            {[2]uint64{0x210, 0x220}, []uint64{1, 2, pythonWord | 8, 1, 3, pythonWord | 16, 2}, nil},
		"above what was walked": {[2]uint64{0x1f0, 0x900}, []uint64{1, pythonWord | 8, 1, 2, 3, pythonWord | 16, 2}, nil},
		"in the loop's code": {[2]uint64{}, []uint64{1, pythonWord | 8, 1, 2, pythonWord | 16, 2, 3},
			[]cpython.Range{{Start: 9, Limit: 10}, {Start: 1, Limit: 3}}},
		"the first is not known": {[2]uint64{0, 0x210}, []uint64{1, 2, 3, pythonWord | 8, 1, pythonWord | 16, 2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := rawWords{python: []activation{{c.at[0], first}, {c.at[1], second}}}
			require.Equal(t, c.want, r.merge(frames, c.loop))
		})
	}
}

func TestRawPages(t *testing.T) {
	table := newRawTable()
	require.True(t, table.addPage(rawPageBytes(5, 0x1ff0, 16, 20)), "a piece is padded")
	require.True(t, table.addPage(rawPageBytes(6, 0x9000, 8, 8)), "another thread's comes in between")
	require.True(t, table.addPage(rawPageBytes(5, 0x2000, 8, 8)))
	require.False(t, table.addPage(rawPageBytes(5, 0x3000, 8, 8)), "a gap")
	c := table.take(5)
	require.Equal(t, stackCopy{0x1ff0, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 2, 3, 4, 5, 6, 7, 8}}, *c)

	c.set(0x2000, 0x1122334455667788)
	c.set(0x2001, 0)
	c.set(0x1fef, 0)
	b := make([]byte, 9)
	n, err := c.ReadAt(b, 0x1fff)
	require.NoError(t, err)
	require.Equal(t, 9, n)
	require.Equal(t, []byte{16, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}, b)
	for _, addr := range []uint64{0x1fef, 0x2000, 1<<64 - 1} {
		_, err = c.ReadAt(b, addr)
		require.Error(t, err, "%#x", addr)
	}
	require.Empty(t, table.take(5).data, "it is taken once")
}

// TestRawTableIsBounded: records that a full ring swallowed leave nothing behind for good.
func TestRawTableIsBounded(t *testing.T) {
	table := newRawTable()
	for id := range uint64(3 * maxCopies) {
		require.True(t, table.addPage(rawPageBytes(id, 0x1000, 8, 8)))
	}
	require.Len(t, table.copies, maxCopies)
	require.Len(t, table.pending, maxCopies)
	require.NotEmpty(t, table.take(3*maxCopies-1).data)
	for id := range event.StackID(maxRawIDs + 10) {
		table.resolved(id+1, 1<<40+id)
	}
	require.Len(t, table.ids, maxRawIDs)
	require.EqualValues(t, 10, table.stack(10), "dropped")
	require.EqualValues(t, 1<<40+10, table.stack(11))
	require.EqualValues(t, 1<<40+maxRawIDs+9, table.stack(maxRawIDs+10))
}

// TestRawStackOfBrokenPython: what the Python frames lack is said although the native ones are complete.
func TestRawStackOfBrokenPython(t *testing.T) {
	const base = 0x7f0000000000
	source, lib := filepath.Join(t.TempDir(), "end.s"), filepath.Join(t.TempDir(), "end.so")
	require.NoError(t, os.WriteFile(source, []byte(".globl last\n.type last, @function\nlast:\n.cfi_startproc\n.cfi_undefined "+
		"rip\nnop\n.cfi_endproc\n"), 0o600))
	out, err := exec.Command("gcc", "-shared", "-nostartfiles", "-o", lib, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := os.Open(lib)
	require.NoError(t, err)
	defer f.Close()
	file, err := symbolize.Open(f, lib)
	require.NoError(t, err)
	last, ok := file.Find("last")
	require.True(t, ok)
	offset, ok := file.FileOffset(last.Addr)
	require.True(t, ok)
	m := at(base, base+0x1000, lib)
	m.Offset = offset &^ 0xfff
	for status, want := range map[event.StackStatus]event.StackStatus{
		event.StatusBadRule: event.StatusUnwound, event.StatusPythonState: event.StatusPythonState, event.StatusTooDeep: event.StatusTooDeep,
	} {
		regions := []mapped.Region{mapped.NewRegion(m, &mapped.File{Symbols: file})}
		p := New(nil).NewProcess(fixedCode{regions: regions})
		words := rawWordsOf(6)
		words[16] = base + offset&0xfff
		record := rawBytes(5, words...)
		record[1] = uint8(status)
		_, ok := p.Decode(nil, record)
		require.True(t, ok)
		stack := p.Stack(p.shared.raw.stack(5))
		require.NotNil(t, stack)
		require.Equal(t, want, stack.Status)
		require.Equal(t, "last", stack.Frames[0].Func)
	}
}

// TestRawStackThatLeadsNowhere: the stack that the kernel came to stays when the copy does not lead as far.
func TestRawStackThatLeadsNowhere(t *testing.T) {
	d := New(nil)
	p := d.NewProcess(nil)
	for _, r := range [][]byte{
		stackRecordBytes(uint8(event.StatusBadRule), 7, 1, 2, 3), rawPageBytes(8, 0x1000, 16, 16), rawBytes(8, rawWordsOf(7)...),
	} {
		events, ok := decodeAny(p, nil, r)
		require.True(t, ok)
		require.Empty(t, events)
	}
	require.EqualValues(t, 7, d.raw.stack(8))
	require.Equal(t, figures.RawStacks{Partial: 1}, d.RawStacks())
	require.Equal(t, figures.RawStacks{Sent: 1, Partial: 1}, p.RawStacks())

	p.Decode(nil, rawBytes(9, rawWordsOf(6, boundaryWord|1, pythonWord|0x7000, 9)...))
	stack := p.Stack(d.raw.stack(9))
	require.Equal(t, event.StatusNoMapping, stack.Status, "the partial stack was lost: this is better than none")
	require.Len(t, stack.Frames, 2)
	require.EqualValues(t, 16, stack.Frames[0].Addr, "the program counter")
	require.Equal(t, event.FramePython, stack.Frames[1].Kind)
}

func TestWithoutVain(t *testing.T) {
	frames := []unwind.StackFrame{{PC: 1}, {PC: 2, Guessed: true}, {PC: 3}}
	got, end := withoutVain(frames, unwind.WalkDone)
	require.Equal(t, frames, got)
	require.Equal(t, unwind.WalkDone, end)
	got, end = withoutVain(frames, unwind.WalkNoMapping)
	require.Equal(t, frames[:2], got)
	require.Equal(t, unwind.WalkNoRow, end)
	got, end = withoutVain(frames[2:], unwind.WalkNoMapping)
	require.Equal(t, frames[2:], got)
	require.Equal(t, unwind.WalkNoMapping, end)
}

// fixedCode is of a process whose mappings stay.
type fixedCode struct {
	noCode
	regions []mapped.Region
}

func (c fixedCode) KnownAt(pc uint64) *mapped.Region  { return mapped.Find(c.regions, pc) }
func (c fixedCode) MappedAt(pc uint64) *mapped.Region { return mapped.Find(c.regions, pc) }

// decodeAny takes a record of either kind.
func decodeAny(p *Process, buf []event.Event, raw []byte) (out []event.Event, ok bool) {
	if p.shared.Page(raw) {
		return buf, true
	}
	if _, ok := PID(raw); !ok {
		return buf, false
	}
	return p.Decode(buf, raw)
}
