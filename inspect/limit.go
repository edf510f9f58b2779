// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"fmt"
)

// maxLimit is more memory than a device has, bytes.
const maxLimit = 1 << 42

// maxLimits bounds the words of a device that can be its limit.
const maxLimits = 64

// Limits reads what can be the program's own limit of each device, bytes of segments: what torch.cuda.set_per_process_memory_fraction and
// per_process_memory_fraction of PYTORCH_ALLOC_CONF allow. If there is a limit it is among them; the others are words that only look like
// one. A request that was refused without asking the driver decides: the limit lies between what is reserved and what would have been.
// Errors are those of Totals.
func (a *Allocator) Limits(ctx context.Context) ([][]uint64, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	out := make([][]uint64, 0, len(devices))
	for i, d := range devices {
		s, err := a.stats(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("read the limit of device %d: %w", i, err)
		}
		_, size, err := readSizedStats(a.memory, d.stats)
		if err != nil {
			return nil, fmt.Errorf("read the limit of device %d: %w", i, err)
		}
		front := d.stats + size - d.addr
		out = append(out, limitsAmong(readable(a.memory, d.addr+front, d.limit-front), s.current(statReservedBytes, 0)))
	}
	return out, nil
}

// limitsAmong finds what can be the limit (allowed_memory_maximum of DeviceCachingAllocator) among the words of a device's object behind its
// statistics: in 2.6.0 it is the word behind the total of all segments, in 2.15.0 a std::optional, which has a byte of 1 behind the word. What is
// reserved keeps within it.
func limitsAmong(words []uint64, reserved uint64) []uint64 {
	var out []uint64
	add := func(limit uint64) {
		if limit >= max(reserved, 1) && limit < maxLimit && len(out) < maxLimits {
			out = appendNew(out, limit)
		}
	}
	for i := 0; i+1 < len(words); i++ {
		if byte(words[i+1]) == 1 {
			add(words[i])
		}
		if words[i] == reserved {
			add(words[i+1])
		}
	}
	return out
}
