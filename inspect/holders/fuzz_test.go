// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
)

// TestMade: the image that the fuzz target damages is one that is understood while it is whole.
func TestMade(t *testing.T) {
	m, names := made.New()
	r, _ := readMade(t, m, 11, 0)
	require.Empty(t, r.Notes)
	require.Len(t, r.Blocks, len(names))
	for i := range r.Blocks {
		assert.Equal(t, names[i], r.Blocks[i].Name())
		assert.Equal(t, Yes, r.Blocks[i].Complete, names[i])
	}
}

// TestMadeLeaves: of the builtin types those that refer to nothing are known, and their objects are.
func TestMadeLeaves(t *testing.T) {
	m, _ := made.New()
	_, r := readMade(t, m, 11, 0)
	require.Equal(t, []uint64{m.Types["str"]}, r.heap.LeafTypes(r.im))
	require.True(t, r.leaves.Has(m.Text))
	require.False(t, r.leaves.Has(m.Modules))
}

// An edit is seven bytes: what is done, to which word of the library or heap, and with what.
const editSize = 7

const (
	editFlip   = iota // a bit
	editCopy          // the word becomes another one: cycles, wrong types
	editPoint         // the word becomes an address somewhere
	editSmall         // a number
	editLarge         // one with only its upper bytes set: sizes and counts
	editMinus         // a negative number
	editZero          // of 256 bytes
	editRepeat        // of 256 bytes, from elsewhere
	edits
)

// edit damages the image. Edits beyond a hundred are left out.
func edit(m *made.Process, b []byte) {
	memory := func(at uint16) []byte { // two thirds are heap
		if at%3 == 0 {
			return m.LibraryBytes[int(at)*8%len(m.LibraryBytes):]
		}
		return m.HeapBytes[int(at)*8%len(m.HeapBytes):]
	}
	for n := 0; len(b) >= editSize && n < 100; b, n = b[editSize:], n+1 {
		word, with := memory(binary.LittleEndian.Uint16(b[1:])), binary.LittleEndian.Uint32(b[3:])
		other := memory(uint16(with))
		old := binary.LittleEndian.Uint64(word)
		switch b[0] % edits {
		case editFlip:
			old ^= 1 << (with % 64)
		case editCopy:
			old = binary.LittleEndian.Uint64(other)
		case editPoint:
			old = made.Heap + uint64(with)*8%uint64(len(m.HeapBytes))
		case editSmall:
			old = uint64(with)
		case editLarge:
			old = uint64(with) << 32
		case editMinus:
			old = -uint64(with)
		case editZero:
			clear(word[:min(256, len(word))])
			continue
		case editRepeat:
			copy(word[:min(256, len(word))], other)
			continue
		}
		binary.LittleEndian.PutUint64(word, old)
	}
}

// Limits of what a damaged image of 200 KB may cost.
const (
	maxDamagedTime   = 5 * time.Second
	maxDamagedMemory = 256 << 20
)

// FuzzImage damages the memory of a process in which there is a bit of everything: single bits, pointers that lead
// elsewhere and in circles, sizes, and pages that are missing. Whatever it says, the reader ends soon, takes little memory,
// and returns each block once, with a name that can be printed.
func FuzzImage(f *testing.F) {
	f.Add(byte(11), uint64(0), []byte{})
	for minor := byte(8); minor <= 13; minor++ { // an interpreter that is taken for another version
		f.Add(minor, uint64(0), []byte{editFlip, 0, 0, 0, 0, 0, 0})
	}
	for page := range uint64(2 * made.Pages) {
		f.Add(byte(11), uint64(1)<<page, []byte{})
	}
	for _, seed := range damage() {
		f.Add(byte(11), uint64(0), seed)
	}
	f.Fuzz(func(t *testing.T, minor byte, absent uint64, edits []byte) {
		m, names := made.New()
		edit(m, edits)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		r, inner := readMade(t, m, int(minor%16), absent)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		require.Less(t, took, maxDamagedTime)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxDamagedMemory))
		require.Len(t, r.Blocks, len(names))
		sums(t, r)
		for i := range r.Blocks {
			b := &r.Blocks[i]
			require.NotEmpty(t, b.Name())
			require.True(t, utf8.ValidString(b.Name()), "%q", b.Name())
			require.LessOrEqual(t, len(b.Path), maxSteps+2)
			require.GreaterOrEqual(t, b.Missing, 0)
		}
		require.LessOrEqual(t, inner.graph.Len(), len(m.HeapBytes)+len(m.LibraryBytes), "more objects than bytes")
		inner.im.Close()
	})
}

// damage makes seeds: a few hundred edits of each kind all over the image, always the same.
func damage() [][]byte {
	state := uint64(1)
	next := func() uint64 { // an LCG (Knuth, MMIX)
		state = state*6364136223846793005 + 1442695040888963407
		return state >> 33
	}
	var out [][]byte
	for kind := range byte(edits) {
		for n := range 24 {
			var seed []byte
			for range 1 + n*4 {
				seed = append(seed, kind)
				seed = binary.LittleEndian.AppendUint16(seed, uint16(next()))
				seed = binary.LittleEndian.AppendUint32(seed, uint32(next()))
			}
			out = append(out, seed)
		}
	}
	return out
}

// Damage to the copy of a real process: rounds, and edits in each, one for about ten kilobytes.
const (
	damageRounds = 4
	damageEdits  = 20000
	damageTime   = time.Minute
)

// TestDamagedJob damages the copy of a real process, which is a thousand times larger than the image that is fuzzed and has
// all that PyTorch is made of: the reader ends in about the time that it takes for the whole one.
func TestDamagedJob(t *testing.T) {
	cases := strings.Fields(listCases(t, "who_torch.py"))[0]
	j := startJob(t, "READY", workloads+"who_torch.py", "--cases", cases, "--ask", "DIR")
	allocator, err := inspect.Find(j.p)
	require.NoError(t, err)
	r := &reading{ctx: t.Context(), p: &linuxProcess{j.p, allocator}, report: &Report{}, code: torchlayout.NewCode(j.p), frozen: true}
	defer r.code.Close()
	r.options.MaxCopy, r.options.Freeze = DefaultMaxCopy, DefaultFreeze
	_, err = r.prepare()
	require.NoError(t, err)
	defer r.im.Close()
	// All is copied, as of a process that was stopped; this one stands still.
	_, _, err = r.copyStopped(func() bool { return false }, false)
	require.NoError(t, err)
	copied := r.im.Raw()
	whole := bytes.Clone(copied)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range damageRounds {
		copy(copied, whole)
		for range damageEdits * round { // the first is whole
			damageWord(copied, random)
		}
		start := time.Now()
		again := *r
		again.report, again.targets = &Report{}, nil
		live, err := again.live(lastTimeout)
		require.NoError(t, err)
		again.first = live
		again.heap = again.python()
		again.analyse(live, again.p.threadIDs())
		require.NoError(t, again.assemble(live))
		sums(t, again.report)
		require.Less(t, time.Since(start), damageTime)
		named := 0
		for i := range again.report.Blocks {
			if len(again.report.Blocks[i].Path) > 0 {
				named++
			}
		}
		t.Logf("%d edits: %d of %d blocks have a path, %d objects, %v, %q", damageEdits*round, named, len(again.report.Blocks),
			again.report.Stats.Objects, time.Since(start).Round(time.Millisecond), again.report.Notes)
		require.True(t, round > 0 || named > len(again.report.Blocks)*9/10)
	}
}

// damageWord changes one word, or clears a few.
func damageWord(pages []byte, random *rand.Rand) {
	at := random.IntN(len(pages)/8-32) * 8
	switch random.IntN(4) {
	case 0:
		pages[at+random.IntN(8)] ^= 1 << random.IntN(8)
	case 1:
		copy(pages[at:at+8], pages[random.IntN(len(pages)/8)*8:])
	case 2:
		binary.LittleEndian.PutUint64(pages[at:], random.Uint64()>>random.IntN(64))
	case 3:
		clear(pages[at : at+8*random.IntN(32)])
	}
}
