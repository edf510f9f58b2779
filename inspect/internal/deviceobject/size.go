// SPDX-License-Identifier: Apache-2.0

package deviceobject

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/process"
)

// propertyLayout is where struct cudaDeviceProp, or hipDeviceProp_t, has some of its fields, bytes from its beginning.
type propertyLayout struct {
	total        int // size_t totalGlobalMem
	sharedMemory int // size_t sharedMemPerBlock
	warp         int // int warpSize
	threads      int // int maxThreadsPerBlock
}

// propertyLayouts are those of driver_types.h of CUDA 10.0 to 13.0, which hip_runtime_api.h of HIP 6 has too, and of HIP before that.
var propertyLayouts = []propertyLayout{
	{total: 288, sharedMemory: 296, warp: 308, threads: 320},
	{total: 256, sharedMemory: 264, warp: 276, threads: 280},
}

// The size of the structure is within these bounds in all versions, bytes.
const (
	propertiesName = 256 // of the name, with which it begins
	leastProperty  = 600
	mostProperty   = 4096
	propertiesHead = 328 // as much as the layouts need
)

// torchLibraries begin the names of the libraries with a list of the devices' properties (device_properties in ATen's CUDAContext.cpp).
var torchLibraries = []string{"libtorch_cuda", "libtorch_hip"}

const wordSize = 8

// Object is where an object of the allocator's is that has a device's state.
type Object struct {
	Addr  uint64
	Limit uint64 // bytes that belong to it at most
}

// Sizes reads the memory of each device that a program can use from the properties that PyTorch has asked CUDA for,
// bytes; 0: not known. PyTorch 2.9 and later keep the properties in the device's object, all versions in a list
// that is filled when the program first runs something on a device.
func Sizes(m process.Memory, objects []Object) []uint64 {
	sizes := make([]uint64, len(objects))
	for i, o := range objects {
		sizes[i] = sizeAmong(m, o)
	}
	if p, ok := m.(*process.Process); ok && slices.Contains(sizes, 0) {
		if listed := listedSizes(p, len(objects)); listed != nil {
			return listed
		}
	}
	return sizes
}

// sizeOf is the memory of the device of which a structure has the properties, bytes. ok is false for what is none.
func sizeOf(b []byte) (size uint64, ok bool) {
	if len(b) < propertiesHead {
		return 0, false
	}
	name, _, ended := bytes.Cut(b[:propertiesName], []byte{0})
	if !ended || len(name) < 3 || bytes.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return 0, false
	}
	for _, l := range propertyLayouts {
		total, shared := binary.LittleEndian.Uint64(b[l.total:]), binary.LittleEndian.Uint64(b[l.sharedMemory:])
		warp, threads := binary.LittleEndian.Uint32(b[l.warp:]), binary.LittleEndian.Uint32(b[l.threads:])
		if total >= 64<<20 && total < maxDevice && shared >= 16<<10 && shared <= 1<<20 && (warp == 32 || warp == 64) && threads >= 256 &&
			threads <= 4096 {
			return total, true
		}
	}
	return 0, false
}

// sizeAmong finds the properties in a device's object; 0: it has none.
func sizeAmong(m process.Memory, o Object) uint64 {
	b := make([]byte, o.Limit)
	n, _ := m.ReadAt(b, o.Addr) // the object ends before the limit, and memory may
	b = b[:n]
	for at := 0; at+propertiesHead <= len(b); at += wordSize {
		if size, ok := sizeOf(b[at:]); ok {
			return size
		}
	}
	return 0
}

// listedSizes finds the list of the devices' properties in the data of PyTorch's library: a std::vector; nil: there
// is none. What is not filled yet is 0.
func listedSizes(p *process.Process, devices int) []uint64 {
	maps, err := p.Maps()
	if err != nil {
		return nil
	}
	for _, m := range dataOf(maps) {
		data := make([]byte, m.End-m.Start)
		n, _ := p.ReadAt(data, m.Start)
		for data = data[:n]; len(data) >= 3*wordSize; data = data[wordSize:] {
			word := func(n int) uint64 { return binary.LittleEndian.Uint64(data[n*wordSize:]) }
			if sizes := sizesAt(p, word(0), word(1), word(2), devices); sizes != nil {
				return sizes
			}
		}
	}
	return nil
}

// dataOf are the writable mappings of PyTorch's libraries, with the memory without a file that follows one: variables that begin as zero.
func dataOf(maps []process.Mapping) (out []process.Mapping) {
	for i := range maps {
		m := &maps[i]
		follows := len(out) > 0 && m.Inode == 0 && out[len(out)-1].End == m.Start
		ofTorch := slices.ContainsFunc(torchLibraries, func(name string) bool { return m.Inode != 0 && strings.HasPrefix(m.Base(), name) })
		if m.Writable && (follows || ofTorch) {
			out = append(out, *m)
		}
	}
	return out
}

// sizesAt reads the sizes from a std::vector<cudaDeviceProp>; nil: it is another thing.
func sizesAt(m process.Memory, begin, end, capacity uint64, devices int) []uint64 {
	if begin == 0 || begin%wordSize != 0 || end <= begin || capacity < end || (end-begin)%uint64(devices) != 0 {
		return nil
	}
	each := (end - begin) / uint64(devices)
	if each < leastProperty || each > mostProperty || each%wordSize != 0 {
		return nil
	}
	sizes, some := make([]uint64, devices), false
	for i := range sizes {
		b := make([]byte, propertiesHead)
		if _, err := m.ReadAt(b, begin+uint64(i)*each); err != nil {
			return nil
		}
		size, ok := sizeOf(b)
		if !ok && slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) {
			return nil
		}
		sizes[i], some = size, some || ok
	}
	if !some {
		return nil
	}
	return sizes
}
