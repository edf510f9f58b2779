// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"encoding/binary"
	"regexp"
	"strconv"

	"github.com/gputrace/gputrace/process"
)

const minName, maxName = len("bfc"), 64 // characters

// anyName matches the names of all allocators, such as "xla_gpu_host_bfc" and TensorFlow's "bfc_cpu_allocator_for_gpu".
var anyName = regexp.MustCompile(`^\w*bfc\w*$`)

// gpuName matches the names that TensorFlow and XLA give allocators of a GPU: "GPU_0_bfc", "GPU_collectivememory_0_bfc". Allocators
// of host memory have other names, such as "xla_gpu_host_bfc". The parts were read in the libraries of TensorFlow 2.21 and JAX 0.12.
var gpuName = regexp.MustCompile(`^GPU_(?:[a-z]+_)?(\d{1,3})_bfc$`)

// Name returns the name of the allocator whose object is at an address, a std::string of libstdc++ (address, length, characters or
// capacity) in the object; empty: no name was found. Its offset changes with each release, but nothing else in the object is the address of
// such characters followed by their length. readable reports whether any of the object could be read.
func Name(m process.Memory, object uint64) (name string, readable bool) {
	bytes := make([]byte, objectBytes)
	n, _ := m.ReadAt(bytes, object)
	for at := 0; at+16 <= n; at += 8 {
		address, length := word(bytes, at), binary.LittleEndian.Uint64(bytes[at+8:])
		if length < uint64(minName) || length > uint64(maxName) || address < minUser || address >= maxUser {
			continue
		}
		text := make([]byte, length)
		if _, err := m.ReadAt(text, address); err == nil && anyName.Match(text) {
			return string(text), true
		}
	}
	return "", n > 0
}

// GPU returns the number of the device on which an allocator of this name has its memory; ok is false for host memory.
func GPU(name string) (device int, ok bool) {
	found := gpuName.FindStringSubmatch(name)
	if found == nil {
		return 0, false
	}
	device, _ = strconv.Atoi(found[1])
	return device, true
}
