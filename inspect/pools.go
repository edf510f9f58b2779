// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/binary"
	"slices"

	"github.com/gputrace/gputrace/process"
)

const (
	// maxDeviceAllocator bounds where in a device's object containers are looked for, bytes. It has 0xc20 in PyTorch 2.15.
	maxDeviceAllocator = 0x1000
	// maxPrivate bounds the same in a private pool, which has 0x170 bytes in 2.15.
	maxPrivate = 0x200
	// maxPoolSets bounds the indexes of one pool: one in 2.0 (before there were unmapped blocks), two in 2.1 to 2.10, three
	// in 2.15.
	maxPoolSets = 4
	// maxTablesSeen bounds the hash tables of an object; there are nine in 2.15.
	maxTablesSeen = 32
	// maxPools bounds the private pools of a device.
	maxPools = 1 << 16
)

// Pool is one of the allocator's pools of segments.
type Pool struct {
	// Small is the pool of blocks up to 1 MiB, otherwise it is the pool of larger ones.
	Small bool
	// ID is that of a private pool, as torch.cuda.MemPool.id and graph_pool_handle show it; zero for the common pools.
	ID [2]uint64
}

// Private reports whether the pool belongs to a CUDA graph or a torch.cuda.MemPool.
func (p Pool) Private() bool { return p.ID != [2]uint64{} }

// pool is a BlockPool: sets of free blocks, then a flag for the small one.
type pool struct {
	Pool
	addr uint64
	sets []uint64 // addresses
}

// at returns the common pools of another device's object.
func (p *places) at(addr uint64) []pool {
	out := slices.Clone(p.pools)
	for i := range out {
		out[i].addr += addr
		out[i].sets = slices.Clone(out[i].sets)
		for j := range out[i].sets {
			out[i].sets[j] += addr
		}
	}
	return out
}

// lookFor looks for the common pools of a device that is busy: where most is seen of several times.
func lookFor(live process.Memory, d device) *places {
	var best *places
	for range lookAgain {
		c := scan(live, d.addr, d.limit)
		pools := poolPair(live, c.sets)
		if pools != nil && (best == nil || len(pools[0].sets) > len(best.pools[0].sets)) {
			best = &places{pools: (&places{pools: pools}).at(-d.addr)}
		}
	}
	return best
}

// containers is what was recognised in an object.
type containers struct {
	sets   []uint64 // addresses, sorted
	tables []table
}

// scan recognises containers among the words of an object. It reads less where the memory ends.
func scan(m process.Memory, addr, limit uint64) (c containers) {
	w := readable(m, addr, limit)
	for i := range w {
		if i+setSize/8 <= len(w) && isSet(m, addr+uint64(8*i), w[i:]) {
			c.sets = append(c.sets, addr+uint64(8*i))
		}
		if i+tableSize/8 <= len(w) && len(c.tables) < maxTablesSeen {
			if t, ok := newTable(addr+uint64(8*i), w[i:]); ok {
				c.tables = append(c.tables, t)
			}
		}
	}
	return c
}

// readable reads words up to a limit in bytes, or up to the first page that cannot be read.
func readable(m process.Memory, addr, limit uint64) []uint64 {
	for end := addr + limit; end > addr; end = (end - 1) &^ (pageSize - 1) {
		if w, err := words(m, addr, int(end-addr)/8); err == nil {
			return w
		}
	}
	return nil
}

// poolPair finds the large and the small pool of an object: two runs of as many sets, each set behind the other, and the
// flag behind the run.
func poolPair(m process.Memory, sets []uint64) []pool {
	runs := setRuns(sets)
	for i := 1; i < len(runs); i++ {
		large, small := runs[i-1], runs[i]
		n := len(small)
		if n > len(large) || n > maxPoolSets {
			continue
		}
		large = large[len(large)-n:]
		if isSmall(m, large) == 0 && isSmall(m, small) == 1 {
			return []pool{{addr: large[0], sets: large}, {addr: small[0], sets: small, Pool: Pool{Small: true}}}
		}
	}
	return nil
}

// setRuns splits sorted addresses of sets where there is something between two of them.
func setRuns(sets []uint64) [][]uint64 {
	var runs [][]uint64
	for i, s := range sets {
		if i == 0 || s != sets[i-1]+setSize {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], s)
	}
	return runs
}

// isSmall is the flag behind the sets of a pool, 0 or 1; -1 when it is none.
func isSmall(m process.Memory, sets []uint64) int {
	var b [1]byte
	if _, err := m.ReadAt(b[:], sets[len(sets)-1]+setSize); err != nil || b[0] > 1 {
		return -1
	}
	return int(b[0])
}

// privateStrides are sizes of the entries of the maps from a private pool's id to the pool: the distance, the id of 16
// bytes, and a plain or a shared pointer.
var privateStrides = []uint64{32, 40}

// privatePools finds the pools of CUDA graphs and MemPools among the tables of a device's object: tables whose values
// point to an object with a pair of pools.
func privatePools(m process.Memory, tables []table) []pool {
	var out []pool
	seen := map[uint64]bool{}
	for i := range tables {
		for _, stride := range privateStrides {
			if tables[i].count > maxPools {
				continue
			}
			values, err := tables[i].values(m, stride)
			if err != nil {
				continue
			}
			for _, v := range values {
				at := binary.LittleEndian.Uint64(v[16:])
				if !pointer(at) || seen[at] {
					continue
				}
				seen[at] = true
				c := scan(m, at, maxPrivate)
				for _, p := range poolPair(m, c.sets) {
					p.ID = [2]uint64{binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:])}
					out = append(out, p)
				}
			}
		}
	}
	return out
}
