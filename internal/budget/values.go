// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

const (
	// MaxValue is the largest value of a map on kernels before 6.0, bytes: KMALLOC_MAX_SIZE, 4 MiB on x86-64
	// (include/linux/slab.h, MAX_ORDER 11), less a page for the key and what the kernel keeps beside it
	// (array_map_alloc_check, htab_map_alloc_check).
	MaxValue = 4<<20 - 4096
	// MaxPerCPU is the largest value of a per-CPU map, bytes (PCPU_MIN_UNIT_SIZE, include/linux/percpu.h).
	MaxPerCPU = 32 << 10
	// MaxStorage is the largest value of storage that belongs to a task, bytes. From 6.19 on more than 8 KiB, with the
	// kernel's own words, is never given (bpf_selem_alloc, kernel/bpf/bpf_local_storage.c): 8,120 were, 8,128 not.
	MaxStorage = 8000
)

// Limit returns how large the values of a map of this type may be, bytes. Zero: the type has no values of its own.
func Limit(kind ebpf.MapType) int {
	switch kind {
	case ebpf.RingBuf, ebpf.UserRingbuf, ebpf.PerfEventArray:
		return 0
	case ebpf.TaskStorage, ebpf.InodeStorage, ebpf.SkStorage, ebpf.CgroupStorage:
		return MaxStorage
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return MaxPerCPU
	default:
		return MaxValue
	}
}

// Oversized is a map whose values some kernel refuses.
type Oversized struct {
	Map   string // the name, or "name, inner" for maps within a map
	Value int    // bytes
	Limit int    // bytes
}

// CheckMaps returns the maps of an object, its data sections included, with larger values than every kernel takes, by name.
// A value other than zero takes the place of all limits.
func CheckMaps(specs map[string]*ebpf.MapSpec, instead int) []Oversized {
	var out []Oversized
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		for m := specs[name]; m != nil; name, m = name+", inner", m.InnerMap {
			limit := Limit(m.Type)
			if limit != 0 && instead != 0 {
				limit = instead
			}
			if limit != 0 && int(m.ValueSize) > limit {
				out = append(out, Oversized{name, int(m.ValueSize), limit})
			}
		}
	}
	return out
}
