// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"math/bits"

	"github.com/gputrace/gputrace/event"
)

// product multiplies; it returns event.Unknown when an operand is unknown or the product exceeds 64 bits.
func product(dims ...uint64) uint64 {
	n := uint64(1)
	for _, d := range dims {
		high, low := bits.Mul64(n, d)
		if d == event.Unknown || high != 0 {
			return event.Unknown
		}
		n = low
	}
	return n
}

// pitched returns the bytes of rows of equal pitch: pitch, then the counts.
func pitched(d []uint64) uint64 { return product(d...) }

// format is the storage format of an array's elements: the bytes for each square of side texels, per channel, or for
// all channels if the format includes them.
type format struct {
	bytes, side uint64
	packed      bool
}

// channelFormats is CUarray_format (cuda.h; HIP_AD_FORMAT_* has the same numbers). It excludes the formats of video
// frames, whose planes are sampled differently: their size is unknown.
var channelFormats = map[uint32]format{
	0x01: {1, 1, false}, 0x02: {2, 1, false}, 0x03: {4, 1, false}, // UNSIGNED_INT8, 16, 32
	0x08: {1, 1, false}, 0x09: {2, 1, false}, 0x0a: {4, 1, false}, // SIGNED_INT8, 16, 32
	0x10: {2, 1, false}, 0x20: {4, 1, false}, // HALF, FLOAT
	0x50: {4, 1, true},                                         // UNORM_INT_101010_2
	0xc0: {1, 1, true}, 0xc1: {2, 1, true}, 0xc2: {4, 1, true}, // UNORM_INT8X1, X2, X4
	0xc3: {2, 1, true}, 0xc4: {4, 1, true}, 0xc5: {8, 1, true}, // UNORM_INT16X1, X2, X4
	0xc6: {1, 1, true}, 0xc7: {2, 1, true}, 0xc8: {4, 1, true}, // SNORM_INT8X1, X2, X4
	0xc9: {2, 1, true}, 0xca: {4, 1, true}, 0xcb: {8, 1, true}, // SNORM_INT16X1, X2, X4
	0x91: {8, 4, true}, 0x92: {8, 4, true}, // BC1
	0x93: {16, 4, true}, 0x94: {16, 4, true}, 0x95: {16, 4, true}, 0x96: {16, 4, true}, // BC2, BC3
	0x97: {8, 4, true}, 0x98: {8, 4, true}, // BC4
	0x99: {16, 4, true}, 0x9a: {16, 4, true}, 0x9b: {16, 4, true}, 0x9c: {16, 4, true}, // BC5, BC6H
	0x9d: {16, 4, true}, 0x9e: {16, 4, true}, // BC7
}

var unknownFormat = format{event.Unknown, 1, true}

// driverFormat reads Format and NumChannels of an array descriptor, which are one word.
func driverFormat(word uint64) format {
	f, ok := channelFormats[uint32(word)]
	if !ok || word == event.Unknown {
		return unknownFormat
	}
	if !f.packed {
		f.bytes *= word >> 32
	}
	return f
}

// runtimeFormat reads a cudaChannelFormatDesc: the bits of x and y, and of z and w.
func runtimeFormat(xy, zw uint64) format {
	if xy == event.Unknown || zw == event.Unknown {
		return unknownFormat
	}
	return format{(xy&0xffffffff + xy>>32 + zw&0xffffffff + zw>>32) / 8, 1, true}
}

// level returns the bytes of one array of these extents; unused extents are 0.
func (f format) level(extents []uint64) uint64 {
	n := f.bytes
	for i, e := range extents {
		e = max(e, 1)
		if i < 2 && e != event.Unknown {
			e = (e + f.side - 1) / f.side
		}
		n = product(n, e)
	}
	return n
}

// Flags of an array (CUDA_ARRAY3D_*, cudaArray*; the same in HIP).
const (
	arrayLayered         = 0x01 // the last extent counts layers
	arrayCubemap         = 0x04
	arraySparse          = 0x40 // memory is bound later (cuMemMapArrayAsync)
	arrayDeferredMapping = 0x80
)

// maxLevels is an upper bound for a mipmapped array: each level halves an extent of 64 bits.
const maxLevels = 64

// levels returns the bytes of a mipmapped array: each extent is half of the previous level's, but at least 1. The
// number of layers stays the same.
func (f format) levels(extents []uint64, levels, flags uint64) uint64 {
	e := append([]uint64(nil), extents...)
	sum := uint64(0)
	if levels > maxLevels {
		return event.Unknown
	}
	for range levels {
		n := f.level(e)
		if n == event.Unknown || sum+n < sum {
			return event.Unknown
		}
		sum += n
		for i := range e {
			if i < 2 || flags&(arrayLayered|arrayCubemap) == 0 {
				e[i] /= 2
			}
		}
	}
	return sum
}

// array2D returns the size from format and channels, extents.
func array2D(d []uint64) uint64 {
	return driverFormat(d[0]).level(d[1:])
}

// array returns the size from format and channels, flags, extents.
func array(d []uint64) uint64 {
	return driverFormat(d[0]).level(d[2:])
}

// mipmap returns the size from format and channels, flags, three extents, levels.
func mipmap(d []uint64) uint64 {
	return driverFormat(d[0]).levels(d[2:5], d[5], d[1])
}

// runtimeArray returns the size from a channel descriptor of two words, flags, extents.
func runtimeArray(d []uint64) uint64 {
	return runtimeFormat(d[0], d[1]).level(d[3:])
}

// runtimeMipmap returns the size from a channel descriptor of two words, flags, three extents, levels.
func runtimeMipmap(d []uint64) uint64 {
	return runtimeFormat(d[0], d[1]).levels(d[3:6], d[6], d[2])
}

func backing(flags uint64) event.Layer {
	if flags != event.Unknown && flags&(arraySparse|arrayDeferredMapping) != 0 {
		return event.LayerVirtual
	}
	return event.LayerDevice
}

// backed returns the layer by the flags, which follow the format: an array without its own memory is only addresses.
func backed(d []uint64) event.Layer        { return backing(d[1]) }
func runtimeBacked(d []uint64) event.Layer { return backing(d[2]) }

// physical returns the size, which comes before the location.
func physical(d []uint64) uint64 { return d[0] }

// located returns the layer of physical memory by CUmemLocationType: HOST, HOST_NUMA and HOST_NUMA_CURRENT are 2, 3 and
// 4, DEVICE is 1.
func located(d []uint64) event.Layer {
	if d[1] >= 2 && d[1] <= 4 {
		return event.LayerHost
	}
	return event.LayerDevice
}
