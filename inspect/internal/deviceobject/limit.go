// SPDX-License-Identifier: Apache-2.0

// Package deviceobject reads single values of what PyTorch keeps of a device: the program's own limit, and the device's size.
package deviceobject

import "slices"

// maxDevice is more memory than a device has, bytes.
const maxDevice = 1 << 42

// MaxLimits bounds the words of a device that can be its limit.
const MaxLimits = 64

// Limits finds what can be the limit (allowed_memory_maximum of DeviceCachingAllocator) among the words of a device's object behind its
// statistics: in 2.6.0 it is the word behind the total of all segments, in 2.15.0 a std::optional, which has a byte
// of 1 behind the word. What is reserved keeps within it.
func Limits(words []uint64, reserved uint64) []uint64 {
	var out []uint64
	add := func(limit uint64) {
		if limit >= max(reserved, 1) && limit < maxDevice && len(out) < MaxLimits && !slices.Contains(out, limit) {
			out = append(out, limit)
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
