// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/binary"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// The state of a device begins with its statistics (struct DeviceStats of c10/core/CachingDeviceAllocator.h, until 2.5 of
// c10/cuda/CUDACachingAllocator.h): nine arrays of three counters each, eight before PyTorch 2.0. PyTorch shows them as
// torch.cuda.memory_stats(), under the same names. In 2.15 there is a hash table, of reserved bytes by private pool, behind
// the reserved bytes.
const (
	statAllocation = iota // counts
	statSegment
	statActive
	statInactiveSplit
	statAllocatedBytes // bytes
	statReservedBytes
	statActiveBytes
	statInactiveSplitBytes
	statRequestedBytes // since 2.0; before, something else is there
	statCount

	counterSize = 4 * 8           // current, peak, allocated, freed
	statSize    = 3 * counterSize // all, small pool, large pool
	statsSize   = statCount * statSize
	statsFront  = (statReservedBytes + 1) * statSize
	maxTables   = 2 // behind the reserved bytes

	maxBytes = 1 << 48 // more than any device has
)

// stats is a copy of the statistics of a device, without the tables between them.
type stats [statsSize]byte

// readStats copies the statistics at an address.
func readStats(m process.Memory, addr uint64) (*stats, error) {
	s, _, err := readSizedStats(m, addr)
	return s, err
}

// readSizedStats is readStats, with the bytes that the statistics take where they are.
func readSizedStats(m process.Memory, addr uint64) (*stats, uint64, error) {
	b := make([]byte, statsSize+maxTables*tableSize)
	if _, err := m.ReadAt(b, addr); err != nil {
		return nil, 0, err
	}
	var s stats
	size := uint64(statsSize)
	rest := b[copy(s[:], b[:statsFront]):]
	for range maxTables {
		if _, ok := newTable(0, wordsOf(rest[:tableSize])); ok {
			rest = rest[tableSize:]
			size += tableSize
		}
	}
	copy(s[statsFront:], rest)
	return &s, size, nil
}

// current is the present value of a statistic in all pools (0), the small ones (1) or the large ones (2).
func (s *stats) current(stat, pool int) uint64 { return s.word(stat, pool, 0) }

func (s *stats) word(stat, pool, word int) uint64 {
	return binary.LittleEndian.Uint64(s[stat*statSize+pool*counterSize+word*8:])
}

// empty reports that nothing was ever allocated: such statistics prove nothing.
func (s *stats) empty() bool { return *s == stats{} }

// check proves that the bytes are statistics of an allocator in one moment, by what its code keeps true: each counter is
// the sum of its small and large part and never above its peak, no part is negative, allocated blocks are among the active
// ones and these lie in segments, and blocks are multiples of 512 bytes. In statistics that are not empty, so many
// equations and inequalities do not hold by chance. The requested bytes are not among them: not every version has them.
func (s *stats) check() error {
	for stat := range statRequestedBytes {
		if err := s.checkCounter(stat); err != nil {
			return err
		}
	}
	for pool := range 3 {
		if err := s.checkPool(pool); err != nil {
			return err
		}
	}
	return nil
}

func (s *stats) checkCounter(stat int) error {
	if all, parts := s.current(stat, 0), s.current(stat, 1)+s.current(stat, 2); all != parts {
		return fmt.Errorf("statistic %d is %d and its parts are %d", stat, all, parts)
	}
	for pool := range 3 {
		if now, peak := s.current(stat, pool), s.word(stat, pool, 1); now > peak || peak >= maxBytes {
			return fmt.Errorf("statistic %d.%d is %d with a peak of %d", stat, pool, now, peak)
		}
	}
	return nil
}

// checkPool compares the statistics with each other.
func (s *stats) checkPool(pool int) error {
	for _, order := range [][2]int{
		{statAllocation, statActive}, {statAllocatedBytes, statActiveBytes}, {statActiveBytes, statReservedBytes},
		{statInactiveSplitBytes, statReservedBytes},
	} {
		if less, more := s.current(order[0], pool), s.current(order[1], pool); less > more {
			return fmt.Errorf("statistic %d.%d is %d, above %d of statistic %d", order[0], pool, less, more, order[1])
		}
	}
	for _, pair := range [][2]int{{statAllocation, statAllocatedBytes}, {statActive, statActiveBytes}} {
		count, bytes := s.current(pair[0], pool), s.current(pair[1], pool)
		if bytes%blockMultiple != 0 || bytes < count*blockMultiple || count == 0 && bytes != 0 {
			return fmt.Errorf("statistic %d.%d is %d bytes of %d blocks", pair[1], pool, bytes, count)
		}
	}
	return nil
}
