// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"time"

	"github.com/gputrace/gputrace/process"
)

// The allocator does everything about a device under that device's mutex, a std::recursive_mutex in front of the
// statistics: also the call that reports an allocation or a free to the profiler, as its last act. Who reads the state
// without it may see a change before it is reported. The mutex is a pthread_mutex_t (glibc, struct __pthread_mutex_s of
// bits/struct_mutex.h, which both processors have): lock, count, owner, users, kind, each of 4 bytes, and what does not matter.
const (
	mutexEnd       = 0x14 // of what is read
	mutexKind      = 0x10
	mutexRecursive = 1    // PTHREAD_MUTEX_RECURSIVE_NP
	mutexKindMask  = 0x7f // without the flag of a mutex shared by processes
)

const (
	// settleTimeout is how long the end of a call is waited for.
	settleTimeout = 100 * time.Millisecond
	// eagerPolls are made without a pause: most calls take less than a microsecond.
	eagerPolls = 100
	pollPause  = 50 * time.Microsecond
)

// lock is what a device's mutex shows.
type lock int8

const (
	lockUnknown lock = iota // it is not recognised
	lockFree
	lockHeld
)

// mutexSizes are the bytes of a pthread_mutex_t by processor (glibc, bits/pthreadtypes-arch.h).
var mutexSizes = map[elf.Machine]uint64{elf.EM_X86_64: 0x28, elf.EM_AARCH64: 0x30}

// lockOf reads the mutex at an address.
func lockOf(m process.Memory, mutex uint64) lock {
	var b [mutexEnd]byte
	if _, err := m.ReadAt(b[:], mutex); err != nil {
		return lockUnknown
	}
	switch {
	case binary.LittleEndian.Uint32(b[mutexKind:])&mutexKindMask != mutexRecursive:
		return lockUnknown
	case binary.LittleEndian.Uint32(b[:]) == 0:
		return lockFree
	}
	return lockHeld
}

// settle waits until every change that is in the state by now has been reported: until the allocator is seen unlocked, or
// busy with a call that began later. Each call changes the number of calls once, so that of two changes the second is
// made by a later call. seen is the statistics as they were when the state was read, or later.
func (a *Allocator) settle(ctx context.Context, d device, seen *stats) (to uint64, settled bool) {
	end := time.Now().Add(settleTimeout)
	for n := 0; ; n++ {
		l := lockOf(a.memory, d.mutex)
		settled = l == lockFree
		if s, err := readStats(a.memory, d.stats); err == nil && !settled {
			settled = s.calls() > seen.calls()+1
		}
		to = bootTime()
		switch {
		case settled:
			return to, true
		case n < eagerPolls:
		case l == lockUnknown || ctx.Err() != nil || time.Now().After(end):
			return to, false
		default:
			time.Sleep(pollPause)
		}
	}
}

// calls is how many allocations and frees there were, or less: a program may reset it
// (torch.cuda.reset_accumulated_memory_stats).
func (s *stats) calls() uint64 { return s.word(statAllocation, 0, 2) + s.word(statAllocation, 0, 3) }
