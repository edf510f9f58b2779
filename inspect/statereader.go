// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/process"
)

// blockMultiple is what every block's size is a multiple of, bytes (kMinBlockSize).
const blockMultiple = 512

// tile is a Block of the allocator, which may be free, or not even backed by memory.
type tile struct {
	at                                 uint64 // address of the Block
	ptr, size, requested, stream, pool uint64
	prev, next                         uint64 // addresses of the neighbours, 0 at the ends of a segment
	before, after                      *tile
	allocated, mapped, active, free    bool
	late                               bool // it is not in both copies: see pages.twice
}

// stateReader is the allocator state of one device, while it is read.
type stateReader struct {
	ctx    context.Context // ends the waiting for what is being changed
	memory process.Memory
	device int
	addr   uint64 // of the object of the device
	limit  uint64 // bytes of it that may be looked at
	stats  uint64 // address of its statistics
	mutex  uint64 // address of its mutex
	shape  shape
	known  *places // nil: they are looked for
	// live is the same memory without a copy. When it is set, what does not fit is left out, and counted in skipped: the
	// state changes while it is read.
	live    process.Memory
	skipped int
	stuck   bool   // a call that was changing something did not end
	places  places // where things are
	plain   bool   // all blocks are mapped: PyTorch 2.0 has no flag for it
	pools   map[uint64]Pool
	tiles   map[uint64]*tile
	list    []*tile // the same, in the order in which they were found
	fresh   []tile  // memory for further tiles
	raw     []byte
}

func newStateReader(m process.Memory, number int, d device, s shape) *stateReader {
	return &stateReader{ctx: context.Background(),
		memory: m, device: number, addr: d.addr, limit: d.limit, stats: d.stats, mutex: d.mutex, shape: s,
		pools: map[uint64]Pool{}, tiles: map[uint64]*tile{}, raw: make([]byte, s.end()),
	}
}

// places is where in a device's object things were found by a proved map. They stay there as long as the program runs.
type places struct {
	pools  []pool // of the common kinds; addr and sets are offsets
	active uint64 // offset of the table of active blocks; 0: not seen
}

// pass returns an error, unless it can be left out.
func (b *stateReader) pass(err error) error {
	if err == nil || b.live == nil || errors.Is(err, errTooMuch) {
		return err
	}
	b.skipped++
	return nil
}

// read collects all tiles, from the sets of free blocks, the set of active ones, and along the neighbours of these.
func (b *stateReader) read() error {
	pools, tables, err := b.containers()
	if err != nil {
		return err
	}
	for _, p := range pools {
		b.pools[p.addr] = p.Pool
	}
	for _, p := range pools {
		for _, s := range p.sets {
			if err := b.readFree(s); err != nil {
				return err
			}
		}
	}
	for _, t := range b.activeTables(tables) {
		if err := b.readActive(b.memory, &t); err != nil {
			return err
		}
	}
	return b.walk(0)
}

// activeTables are those of a device's tables that can be the one of active blocks.
func (b *stateReader) activeTables(tables []table) []table {
	if b.live == nil || b.known.active == 0 {
		return tables
	}
	for range lookAgain { // its head may just be written
		if w, err := words(b.live, b.addr+b.known.active, tableSize/8); err == nil {
			if t, ok := newTable(b.addr+b.known.active, w); ok {
				return []table{t}
			}
		}
	}
	return nil
}

// again reads the table of active blocks a second time, as it is now: a block can have moved within it while it was read
// the first time. Blocks that were not seen before are read as they are now, too: of the pages that were copied first, much
// can be out of date by now.
func (b *stateReader) again() error {
	from := len(b.list)
	err := b.untilWhole(lookAgain, func() (bool, error) { // its head may just have been written
		b.memory = newPages(b.live)
		for _, t := range scan(b.live, b.addr, b.limit).tables {
			if b.places.active != 0 {
				break
			}
			if err := b.readActive(b.live, &t); err != nil {
				return false, err
			}
		}
		return b.places.active != 0, nil
	})
	if err != nil || b.places.active == 0 {
		return err
	}
	b.known = &b.places
	err = b.untilWhole(maxAgain, func() (bool, error) {
		b.memory = newPages(b.live)
		before, _ := readStats(b.live, b.stats)
		whole := false
		for _, t := range b.activeTables(nil) {
			values, err := t.values(b.live, activeStride)
			whole = err == nil && before != nil && b.enough(before, len(values))
			if err := b.take(pointersOf(values), func(t *tile) { t.active = true }); err != nil {
				return false, err
			}
		}
		return whole, nil
	})
	if err != nil {
		return err
	}
	return b.walk(from)
}

// enough reports whether so many values were all active blocks at some moment since the statistics were before. A table
// that grows begins empty, with a count that fits what is in it again so far, so that only the statistics tell: they count
// a block right after it came into the table, and right after it left it.
func (b *stateReader) enough(before *stats, values int) bool {
	after, err := readStats(b.live, b.stats)
	if err != nil {
		return false
	}
	came := int64(after.word(statAllocation, 0, 2) - before.word(statAllocation, 0, 2)) // below 0: the program reset it
	return came >= 0 && int64(values)+came+1 >= int64(after.current(statActive, 0))
}

// untilWhole reads something that is being changed until it is whole: a few times, and on as long as the device's mutex was
// held before, since the thread that refills the table may have been stopped in the middle.
func (b *stateReader) untilWhole(often int, read func() (bool, error)) error {
	end := time.Now().Add(refillTimeout)
	for n := 1; ; n++ {
		held := lockOf(b.live, b.mutex) == lockHeld
		whole, err := read()
		switch {
		case whole || err != nil || n >= often && !held:
			return err
		case b.ctx.Err() != nil:
			return context.Cause(b.ctx)
		case n >= often && time.Now().After(end):
			b.stuck = true
			return nil
		case n >= often:
			time.Sleep(pollPause)
		}
	}
}

// containers finds the pools, also private ones, and the tables one of which has the active blocks.
func (b *stateReader) containers() ([]pool, []table, error) {
	c := scan(b.memory, b.addr, b.limit)
	pools := poolPair(b.memory, c.sets)
	if b.known != nil {
		pools = b.known.at(b.addr)
	}
	if pools == nil {
		return nil, nil, fmt.Errorf("no pools among %d sets of the device's object", len(c.sets))
	}
	b.places.pools = (&places{pools: pools}).at(-b.addr)
	b.plain = len(pools[0].sets) == 1
	pools = append(pools, privatePools(b.memory, c.tables)...)
	if b.live != nil { // a table that was just being changed when it was copied
		for _, p := range privatePools(b.live, scan(b.live, b.addr, b.limit).tables) {
			if !slices.ContainsFunc(pools, func(known pool) bool { return known.addr == p.addr }) {
				pools = append(pools, p)
			}
		}
	}
	return pools, c.tables, nil
}

// readFree takes in the blocks of one index of a pool.
func (b *stateReader) readFree(set uint64) error {
	values, err := setValues(b.memory, set)
	if err := b.pass(err); err != nil {
		return err
	}
	return b.take(values, func(t *tile) { t.free = true })
}

// take reads the Blocks at addresses and marks them.
func (b *stateReader) take(addrs []uint64, mark func(*tile)) error {
	slices.Sort(addrs)
	prefetch(b.memory, addrs, len(b.raw))
	for _, at := range addrs {
		t, err := b.tile(at)
		if err := b.pass(err); err != nil {
			return err
		}
		if t != nil {
			mark(t)
		}
	}
	return nil
}

// activeStride is the size of an entry of the table of active blocks: the distance, and the pointer.
const activeStride = 16

// readActive takes in the blocks of a table in memory, if it is the one of active blocks: all of its values are blocks.
func (b *stateReader) readActive(m process.Memory, t *table) error {
	values, err := t.values(m, activeStride)
	if err != nil && b.live == nil || len(values) == 0 {
		return nil // a table of something else
	}
	addrs := pointersOf(values)
	if b.blocksAmong(addrs[:1]) == 0 && b.live == nil {
		return nil
	}
	if sample := addrs[:min(tableSample, len(addrs))]; b.live != nil && 2*b.blocksAmong(sample) < len(sample) {
		return nil
	}
	if b.places.active == 0 {
		b.places.active = t.at - b.addr
	}
	return b.take(addrs, func(t *tile) { t.active = true })
}

// tableSample is how many values tell what a table is of while it may change.
const tableSample = 32

func pointersOf(values [][]byte) []uint64 {
	out := make([]uint64, len(values))
	for i, v := range values {
		out[i] = binary.LittleEndian.Uint64(v)
	}
	return out
}

// blocksAmong is how many of some addresses are those of Blocks.
func (b *stateReader) blocksAmong(addrs []uint64) int {
	n := 0
	for _, at := range addrs {
		if _, err := b.tile(at); err == nil {
			n++
		}
	}
	return n
}

// tile is the Block at an address, read once.
func (b *stateReader) tile(at uint64) (*tile, error) {
	if t := b.tiles[at]; t != nil {
		return t, nil
	}
	if !pointer(at) || len(b.tiles) >= maxBlocks {
		return nil, fmt.Errorf("block at %#x, behind %d others: no address, or too many", at, len(b.tiles))
	}
	memory := b.memory
	if b.live != nil && at%pageSize+uint64(len(b.raw)) > pageSize {
		memory = b.live // its two pages were copied at different times
	}
	copied, _ := memory.(*pages)
	if copied != nil {
		copied.late = false
	}
	raw, err := peek(memory, at, b.raw)
	if err != nil {
		return nil, fmt.Errorf("block at %#x: %w", at, err)
	}
	t := b.newTile()
	b.fill(t, at, raw)
	t.late = copied != nil && copied.late
	if err := b.plausible(t, raw); err != nil {
		return nil, fmt.Errorf("block at %#x: %w", at, err)
	}
	b.tiles[at] = t
	b.list = append(b.list, t)
	return t, nil
}

// fill takes a Block apart.
func (b *stateReader) fill(t *tile, at uint64, raw []byte) {
	word := func(off uint64) uint64 { return binary.LittleEndian.Uint64(raw[off:]) }
	p := b.shape.pool()
	*t = tile{
		at: at, stream: word(blockStream), size: word(b.shape.size), requested: Unknown,
		pool: word(p), ptr: word(p + fromPoolToPtr), prev: word(p + fromPoolToPrev), next: word(p + fromPoolToNext),
		allocated: raw[p+fromPoolToAllocated] != 0, mapped: b.plain || raw[p+fromPoolToMapped] != 0,
	}
	if b.shape.requested {
		t.requested = word(b.shape.size + fromSizeToRequested)
	}
}

func (b *stateReader) newTile() *tile {
	if len(b.fresh) == 0 {
		b.fresh = make([]tile, growth)
	}
	t := &b.fresh[0]
	b.fresh = b.fresh[1:]
	return t
}

func (b *stateReader) plausible(t *tile, raw []byte) error {
	_, known := b.pools[t.pool]
	device, flags := int(int8(raw[blockDevice])), raw[b.shape.pool()+fromPoolToAllocated]
	if !b.plain {
		flags |= raw[b.shape.pool()+fromPoolToMapped]
	}
	switch {
	case device != b.device:
		return fmt.Errorf("of device %d, want %d", device, b.device)
	case t.size == 0 || t.size%blockMultiple != 0 || t.size >= maxBytes:
		return fmt.Errorf("%d bytes", t.size)
	case t.ptr == 0 || t.ptr%blockMultiple != 0 || t.ptr+t.size < t.ptr:
		return fmt.Errorf("at device address %#x", t.ptr)
	case !known:
		return fmt.Errorf("pool at %#x is not known", t.pool)
	case flags > 1:
		return fmt.Errorf("flags %#x", flags)
	case t.allocated && b.shape.requested && t.requested > t.size:
		return fmt.Errorf("%d bytes requested of %d", t.requested, t.size)
	}
	return nil
}

// walk adds the neighbours of all tiles from one on, and theirs, and checks that neighbours know each other.
func (b *stateReader) walk(from int) (err error) {
	for i := from; i < len(b.list); i++ { // grows meanwhile
		t := b.list[i]
		if t.prev != 0 {
			t.before, err = b.tile(t.prev)
			if err := b.pass(err); err != nil {
				return err
			}
		}
		if t.next != 0 {
			t.after, err = b.tile(t.next)
			if err := b.pass(err); err != nil {
				return err
			}
		}
	}
	for _, t := range b.list[from:] {
		if err := b.pass(t.checkNeighbours()); err != nil {
			return err
		}
	}
	return nil
}

func (t *tile) checkNeighbours() error {
	if n := t.after; n != nil && (n.before != t || n.ptr != t.ptr+t.size || n.pool != t.pool) {
		return fmt.Errorf("block at %#x and the next one, at %#x, do not fit", t.at, n.at)
	}
	if t.before != nil && t.before.after != t {
		return fmt.Errorf("block at %#x and the one before, at %#x, do not fit", t.at, t.prev)
	}
	return nil
}

// sums is what the tiles add up to.
type sums struct {
	allocated, allocations uint64
	active, actives        uint64
	requested              uint64
	reserved               uint64
}

// balance proves the tiles against the statistics of the same moment: every tile is where the allocator keeps its kind, and
// they add up to the same counts and bytes.
func (b *stateReader) balance(s *stats) error {
	var got sums
	for _, t := range b.list {
		if err := t.check(b.shape); err != nil {
			return err
		}
		got.add(t)
	}
	for _, c := range []struct {
		what string
		got  uint64
		stat int
		skip bool
	}{
		{"reserved bytes", got.reserved, statReservedBytes, false}, {"allocated bytes", got.allocated, statAllocatedBytes, false},
		{"allocations", got.allocations, statAllocation, false}, {"active bytes", got.active, statActiveBytes, false},
		{"active blocks", got.actives, statActive, false}, {"requested bytes", got.requested, statRequestedBytes, !b.shape.requested},
	} {
		if want := s.current(c.stat, 0); c.got != want && !c.skip {
			return fmt.Errorf("%d %s, want %d", c.got, c.what, want)
		}
	}
	return nil
}

func (s *sums) add(t *tile) {
	if t.mapped {
		s.reserved += t.size
	}
	if t.allocated {
		s.allocated += t.size
		s.allocations++
	}
	if t.active {
		s.active += t.size
		s.requested += t.requested
		s.actives++
	}
}

// check proves that a tile is kept where it belongs: in use and waiting ones among the active, all others among the free.
func (t *tile) check(s shape) error {
	switch {
	case t.active == t.free, t.allocated && !t.active, t.active && !t.mapped:
		return fmt.Errorf("block at %#x: allocated %t, active %t, free %t, mapped %t", t.at, t.allocated, t.active, t.free, t.mapped)
	case t.active && s.requested && t.requested > t.size:
		return fmt.Errorf("block at %#x: %d bytes requested of %d", t.at, t.requested, t.size)
	}
	return nil
}

// segments lists the tiles as segments, sorted by address. Of an expandable segment each mapped part is one, as in
// torch.cuda.memory_snapshot().
func (b *stateReader) segments() ([]Segment, error) {
	var out []Segment
	for _, t := range b.list {
		if t.before == nil {
			out = b.appendSegments(out, t.chain())
		}
	}
	sorts.Func(out, func(x, y Segment) int { return cmp.Compare(x.Addr, y.Addr) })
	tiles := 0
	for i := range out {
		tiles += len(out[i].Blocks)
		if i > 0 && out[i-1].Addr+out[i-1].Size > out[i].Addr {
			return nil, fmt.Errorf("segments at %#x and %#x overlap", out[i-1].Addr, out[i].Addr)
		}
	}
	return out, nil
}

// chain is a tile and all behind it.
func (t *tile) chain() (out []*tile) {
	for ; t != nil; t = t.after {
		out = append(out, t)
	}
	return out
}

// appendSegments adds the tiles of one chain: of neighbours, in the order of their addresses.
func (b *stateReader) appendSegments(out []Segment, chain []*tile) []Segment {
	expandable := slices.ContainsFunc(chain, func(t *tile) bool { return !t.mapped })
	open := false
	for _, t := range chain {
		if !t.mapped {
			open = false
			continue
		}
		if !open {
			out = append(out, Segment{Addr: t.ptr, Stream: t.stream, Pool: b.pools[t.pool], Expandable: expandable})
			open = true
		}
		s := &out[len(out)-1]
		s.Size += t.size
		s.Blocks = append(s.Blocks, t.block())
	}
	return out
}

func (t *tile) block() Block {
	out := Block{Addr: t.ptr, Size: t.size, Stream: t.stream}
	switch {
	case t.allocated:
		out.State, out.Requested = StateAllocated, t.requested
	case t.active:
		out.State, out.Requested = StatePending, t.requested
	}
	return out
}
