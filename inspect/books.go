//go:build linux

package inspect

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

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
}

// books is everything the allocator has written down about one device, while it is put together.
type books struct {
	memory process.Memory
	device int
	addr   uint64 // of the object of the device
	limit  uint64 // bytes of it that may be looked at
	size   uint64 // where in a Block its size is
	plain  bool   // all blocks are mapped: PyTorch 2.0 has no flag for it
	pools  map[uint64]Pool
	tiles  map[uint64]*tile
	list   []*tile // the same, in the order in which they were found
	fresh  []tile  // memory for further tiles
	raw    []byte
}

func newBooks(m process.Memory, device int, addr, limit, size uint64) *books {
	return &books{
		memory: m, device: device, addr: addr, limit: limit, size: size,
		pools: map[uint64]Pool{}, tiles: map[uint64]*tile{}, raw: make([]byte, size+blockTail),
	}
}

// read collects all tiles, from the sets of free blocks, the set of active ones, and along the neighbours of these.
func (b *books) read() error {
	c := scan(b.memory, b.addr, b.limit)
	pools := poolPair(b.memory, c.sets)
	if pools == nil {
		return fmt.Errorf("no pools among %d sets of the device's object", len(c.sets))
	}
	b.plain = len(pools[0].sets) == 1
	pools = append(pools, privatePools(b.memory, c.tables)...)
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
	for i := range c.tables {
		if err := b.readActive(&c.tables[i]); err != nil {
			return err
		}
	}
	return b.walk()
}

// readFree takes in the blocks of one index of a pool.
func (b *books) readFree(set uint64) error {
	values, err := setValues(b.memory, set)
	if err != nil {
		return err
	}
	for _, at := range values {
		t, err := b.tile(at)
		if err != nil {
			return err
		}
		t.free = true
	}
	return nil
}

// readActive takes in the blocks of a table, if it is the one of active blocks: all of its values are blocks.
func (b *books) readActive(t *table) error {
	const stride = 16
	values, err := t.values(b.memory, stride)
	if err != nil || len(values) == 0 {
		return nil // a table of something else
	}
	for i, v := range values {
		tile, err := b.tile(binary.LittleEndian.Uint64(v))
		switch {
		case err == nil:
			tile.active = true
		case i == 0:
			return nil
		default:
			return err
		}
	}
	return nil
}

// tile is the Block at an address, read once.
func (b *books) tile(at uint64) (*tile, error) {
	if t := b.tiles[at]; t != nil {
		return t, nil
	}
	if !pointer(at) || len(b.tiles) >= maxBlocks {
		return nil, fmt.Errorf("block at %#x, behind %d others: no address, or too many", at, len(b.tiles))
	}
	if _, err := b.memory.ReadAt(b.raw, at); err != nil {
		return nil, fmt.Errorf("block at %#x: %w", at, err)
	}
	word := func(off uint64) uint64 { return binary.LittleEndian.Uint64(b.raw[off:]) }
	s := b.size
	t := b.newTile()
	*t = tile{
		at: at, stream: word(blockStream), size: word(s), requested: word(s + fromSizeToRequested),
		pool: word(s + fromSizeToPool), ptr: word(s + fromSizeToPtr), prev: word(s + fromSizeToPrev), next: word(s + fromSizeToNext),
		allocated: b.raw[s+fromSizeToAllocated] != 0, mapped: b.plain || b.raw[s+fromSizeToMapped] != 0,
	}
	if err := b.plausible(t); err != nil {
		return nil, fmt.Errorf("block at %#x: %w", at, err)
	}
	b.tiles[at] = t
	b.list = append(b.list, t)
	return t, nil
}

func (b *books) newTile() *tile {
	if len(b.fresh) == 0 {
		b.fresh = make([]tile, growth)
	}
	t := &b.fresh[0]
	b.fresh = b.fresh[1:]
	return t
}

func (b *books) plausible(t *tile) error {
	_, known := b.pools[t.pool]
	device, flags := int(int8(b.raw[blockDevice])), b.raw[b.size+fromSizeToAllocated]
	if !b.plain {
		flags |= b.raw[b.size+fromSizeToMapped]
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
	}
	return nil
}

// walk adds the neighbours of all tiles, and theirs, and checks that neighbours know each other.
func (b *books) walk() (err error) {
	for i := 0; i < len(b.list); i++ { // grows meanwhile
		t := b.list[i]
		if t.prev != 0 {
			if t.before, err = b.tile(t.prev); err != nil {
				return err
			}
		}
		if t.next != 0 {
			if t.after, err = b.tile(t.next); err != nil {
				return err
			}
		}
	}
	for _, t := range b.list {
		if err := t.checkNeighbours(); err != nil {
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
func (b *books) balance(s *stats) error {
	var got sums
	for _, t := range b.list {
		if err := t.check(); err != nil {
			return err
		}
		got.add(t)
	}
	for _, c := range []struct {
		what string
		got  uint64
		stat int
	}{
		{"reserved bytes", got.reserved, statReservedBytes}, {"allocated bytes", got.allocated, statAllocatedBytes},
		{"allocations", got.allocations, statAllocation}, {"active bytes", got.active, statActiveBytes},
		{"active blocks", got.actives, statActive}, {"requested bytes", got.requested, statRequestedBytes},
	} {
		if want := s.current(c.stat, 0); c.got != want {
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
func (t *tile) check() error {
	switch {
	case t.active == t.free, t.allocated && !t.active, t.active && !t.mapped:
		return fmt.Errorf("block at %#x: allocated %t, active %t, free %t, mapped %t", t.at, t.allocated, t.active, t.free, t.mapped)
	case t.active && t.requested > t.size:
		return fmt.Errorf("block at %#x: %d bytes requested of %d", t.at, t.requested, t.size)
	}
	return nil
}

// segments lists the tiles as segments, sorted by address. Of an expandable segment each mapped part is one, as in
// torch.cuda.memory_snapshot().
func (b *books) segments() ([]Segment, error) {
	var out []Segment
	for _, t := range b.list {
		if t.before == nil {
			out = b.appendSegments(out, t)
		}
	}
	slices.SortFunc(out, func(x, y Segment) int { return cmp.Compare(x.Addr, y.Addr) })
	tiles := 0
	for i := range out {
		tiles += len(out[i].Blocks)
		if i > 0 && out[i-1].Addr+out[i-1].Size > out[i].Addr {
			return nil, fmt.Errorf("segments at %#x and %#x overlap", out[i-1].Addr, out[i].Addr)
		}
	}
	return out, nil
}

// appendSegments cuts the tiles from one on.
func (b *books) appendSegments(out []Segment, head *tile) []Segment {
	first, expandable, open := len(out), false, false
	for t := head; t != nil; t = t.after {
		if !t.mapped {
			expandable, open = true, false
			continue
		}
		if !open {
			out = append(out, Segment{Addr: t.ptr, Stream: t.stream, Pool: b.pools[t.pool]})
			open = true
		}
		s := &out[len(out)-1]
		s.Size += t.size
		s.Blocks = append(s.Blocks, t.block())
	}
	for i := first; i < len(out); i++ {
		out[i].Expandable = expandable
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
