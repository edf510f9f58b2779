// SPDX-License-Identifier: Apache-2.0

package arrays

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/process"
)

// Block is a live block of a pool.
type Block struct {
	Device     int
	Addr, Size uint64 // bytes
}

// Device is what the pools of one device count.
type Device struct {
	Index int
	Used  uint64 // bytes in use, by the pools' own counts or, without Counted, by the blocks that were found
	// Counted reports that the pools' own counts are known.
	Counted bool
	// Missing is how many bytes of Used are in blocks that changed while they were read.
	Missing uint64
}

// State is the blocks of all pools at one moment.
type State struct {
	Blocks  []Block
	Devices []Device
}

// reading is what one image shows.
type reading struct {
	blocks map[uint64]block    // by object
	words  map[uint64][]uint64 // of each pool, behind its head
}

type block struct{ pool, addr, size uint64 }

// look reads all pools and the blocks that they dealt out.
func (r *Reader) look(im pyobject.Image) *reading {
	out := &reading{blocks: map[uint64]block{}, words: map[uint64][]uint64{}}
	fields, of := r.fields(im, rolePool), r.devices(im)
	for _, p := range r.live(im, rolePool) {
		if _, ok := of[p]; !ok { // two words in a table of Python's can look like the head of a pool
			continue
		}
		for _, at := range fields {
			out.words[p] = append(out.words[p], im.Word(p+at))
		}
	}
	for _, m := range r.live(im, roleMemory) {
		b := block{r.poolAt(im, im.Word(m+r.pool)), im.Word(m + r.start), im.Word(m + r.size)}
		if out.words[b.pool] != nil && b.addr != 0 && b.size != 0 && b.size%Unit == 0 { // the address is 0 once the block is freed
			out.blocks[m] = b
		}
	}
	return out
}

// sums adds up the blocks of each pool.
func (n *reading) sums() map[uint64]uint64 {
	out := map[uint64]uint64{}
	for _, b := range n.blocks {
		out[b.pool] += b.size
	}
	return out
}

// counted lists the words that are, in each pool, the sum of its blocks, and is empty if no pool has a block.
func (n *reading) counted() (words []int) {
	sums := n.sums()
	if len(sums) == 0 {
		return nil
	}
	for p, list := range n.words {
		if words == nil {
			for i := range list {
				words = append(words, i)
			}
		}
		words = slices.DeleteFunc(words, func(i int) bool { return list[i] != sums[p] })
	}
	return words
}

// balance reports whether the blocks add up to the pools' own counts, and learns where these are. Without a block there is nothing to
// learn from, and nothing to miss.
func (r *Reader) balance(n *reading) bool {
	if len(n.words) == 0 {
		return true
	}
	var now []uint64
	for _, i := range n.counted() {
		now = append(now, uint64(i))
	}
	if len(r.counts) == 0 {
		r.counts = now
		return len(now) > 0
	}
	both := slices.DeleteFunc(slices.Clone(r.counts), func(i uint64) bool { return !slices.Contains(now, i) })
	if len(both) > 0 {
		r.counts = both
	}
	return len(both) > 0
}

// used is a pool's own count. Where two words can be the count, the other one is what the pool took from the driver, which is not less.
func (r *Reader) used(words []uint64) uint64 {
	least := ^uint64(0)
	for _, i := range r.counts {
		least = min(least, words[i])
	}
	return least
}

// state puts a reading together.
func (r *Reader) state(im pyobject.Image, n *reading, balanced bool) *State {
	out, devices, sums := &State{}, map[int]*Device{}, n.sums()
	of := r.devices(im)
	for p, words := range n.words {
		index, ok := of[p]
		if !ok {
			continue
		}
		d := devices[index]
		if d == nil {
			d = &Device{Index: index, Counted: true}
			devices[index] = d
		}
		switch {
		case balanced || len(r.counts) == 0:
			d.Used, d.Counted = d.Used+sums[p], d.Counted && balanced
		default:
			d.Used += max(r.used(words), sums[p])
			d.Missing += max(r.used(words), sums[p]) - sums[p]
		}
	}
	for _, m := range slices.Sorted(maps.Keys(n.blocks)) {
		b := n.blocks[m]
		if index, ok := of[b.pool]; ok {
			out.Blocks = append(out.Blocks, Block{index, b.addr, b.size})
		}
	}
	for _, i := range slices.Sorted(maps.Keys(devices)) {
		out.Devices = append(out.Devices, *devices[i])
	}
	return out
}

// devices are the numbers of the pools' devices: their positions in the tuple of a MemoryPool.
func (r *Reader) devices(im pyobject.Image) map[uint64]int {
	out := map[uint64]int{}
	for _, all := range r.live(im, rolePools) {
		for _, at := range r.fields(im, rolePools) {
			tuple := im.Word(all + at)
			t := r.Heap.TypeOf(im, tuple)
			if t == nil || t.Name != "tuple" {
				continue
			}
			for _, e := range r.Heap.References(im, nil, tuple, t) {
				if e.Kind == pyobject.RefIndex && r.is(im, e.Target, rolePool) {
					out[e.Target] = int(e.Aux)
				}
			}
		}
	}
	return out
}

// Copied reads the blocks in a copy of a process that was stopped.
func (r *Reader) Copied(im pyobject.Image) *State {
	n := r.look(im)
	return r.state(im, n, r.balance(n))
}

const (
	maxPages   = 1 << 16 // of objects, 256 MiB
	maxTries   = 200
	leastTries = 5 // whatever time they take, on a busy machine
	betweenTry = time.Millisecond
	triesTime  = 200 * time.Millisecond
)

// Now reads the blocks of a running process at one moment: the objects are read twice, and what is equal in both was there in between.
// If the blocks never add up to the pools' counts, the state has those that stood still, and what is missing.
func (r *Reader) Now(ctx context.Context, m process.Memory, clock func() uint64, regions []memory.Region) (s *State, at uint64, err error) {
	var images [2]*memory.Image
	for i := range images {
		if images[i], err = memory.NewProbe(ctx, m, regions, maxPages); err != nil {
			return nil, 0, err
		}
		defer images[i].Close()
	}
	pages := r.pages(images[0])
	for end, n := time.Now().Add(triesTime), 0; ; n++ {
		images[0].ReadOnce(m, pages)
		at = clock()
		images[1].ReadOnce(m, pages)
		first, second := r.look(images[0]), r.look(images[1])
		maps.DeleteFunc(first.blocks, func(o uint64, b block) bool { return second.blocks[o] != b })
		same := maps.EqualFunc(first.words, second.words, slices.Equal[[]uint64]) && len(first.blocks) == len(second.blocks)
		balanced := same && r.balance(first)
		if balanced || n >= maxTries || n >= leastTries && time.Now().After(end) || ctx.Err() != nil {
			return r.state(images[0], first, balanced), at, context.Cause(ctx)
		}
		time.Sleep(betweenTry)
	}
}

// pages lists the pages that the state needs, sorted, by reading it once.
func (r *Reader) pages(im *memory.Image) []uint64 {
	r.state(im, r.look(im), false)
	for _, k := range []role{roleMemory, rolePool} { // also of objects that are not alive at this moment
		t := r.Heap.TypeAt(im, r.Types[k])
		for _, o := range r.Objects[k] {
			im.View(o, int(t.Size))
		}
	}
	pages := slices.Clone(im.Pages())
	slices.Sort(pages)
	return slices.Compact(pages)
}
