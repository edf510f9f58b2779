// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"slices"

	"github.com/ulikunitz/xz/lzma"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// The .xz file format, version 1.2.1, as far as .gnu_debugdata needs it. The container is read here and not by the library
// because the library allocates whatever dictionary a file asks for, up to 4 GiB.
const (
	xzMagic      = "\xfd7zXZ\x00"
	xzHeader     = 12          // bytes of a stream header (section 2.1.1)
	xzFilterLZMA = 0x21        // LZMA2 (section 5.3.1)
	maxXZDict    = 64 << 20    // bytes; that of "xz -9", the largest preset
	maxMini      = 256 << 20   // bytes that .gnu_debugdata may unpack to; libraries of distributions have less than 10 MB
	xzBlockSizes = 0x40 | 0x80 // block flags: packed size, unpacked size present
)

var crc64ECMA = crc64.MakeTable(crc64.ECMA)

// xzChecks are the sums behind a block, by the stream flags (section 2.1.1.2). nil: none.
var xzChecks = map[byte]func() hash.Hash{
	0x00: nil,
	0x01: func() hash.Hash { return crc32.NewIEEE() },
	0x04: func() hash.Hash { return crc64.New(crc64ECMA) },
	0x0a: sha256.New,
}

// unxz unpacks one .xz stream of at most limit bytes.
func unxz(packed []byte, limit int) (out []byte, err error) {
	r := elfimage.Reader{B: packed}
	head := r.Take(xzHeader)
	if r.Bad || string(head[:6]) != xzMagic || head[6] != 0 {
		return nil, fmt.Errorf("no xz header in %d bytes: %w", len(packed), elfimage.ErrFormat)
	}
	check, known := xzChecks[head[7]]
	if !known || crc32.ChecksumIEEE(head[6:8]) != binary.LittleEndian.Uint32(head[8:]) {
		return nil, fmt.Errorf("xz stream flags %x: %w", head[6:], elfimage.ErrFormat)
	}
	for {
		size := r.U8()
		if r.Bad || size == 0 { // the index, which repeats the sizes of the blocks
			break
		}
		block, err := xzBlock(&r, int(size), limit-len(out), check)
		if err != nil {
			return nil, err
		}
		out = append(out, block...)
	}
	if r.Bad {
		return nil, fmt.Errorf("xz stream of %d bytes is cut short: %w", len(packed), elfimage.ErrFormat)
	}
	return out, nil
}

// xzBlock unpacks the block behind its size byte (section 3).
func xzBlock(r *elfimage.Reader, size, limit int, check func() hash.Hash) ([]byte, error) {
	dict, err := xzBlockHeader(r, 4*size)
	if err != nil {
		return nil, err
	}
	in := bytes.NewReader(r.B[r.Off:])
	lz, err := lzma.Reader2Config{DictCap: max(lzma.MinDictCap, min(dict, limit))}.NewReader2(in)
	if err != nil {
		return nil, fmt.Errorf("xz block: %w: %w", elfimage.ErrFormat, err)
	}
	out, err := io.ReadAll(io.LimitReader(lz, int64(limit)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("xz block: %w: %w", elfimage.ErrFormat, err)
	case len(out) > limit:
		return nil, fmt.Errorf("xz block unpacks to more than %d bytes: %w", limit, elfimage.ErrFormat)
	}
	packed := uint64(len(r.B) - r.Off - in.Len())
	r.Take(packed + -packed&3) // padded with zeros to 4 bytes
	if check == nil {
		return out, nil
	}
	sum := check()
	sum.Write(out)
	want, got := r.Take(uint64(sum.Size())), sum.Sum(nil)
	if sum.Size() < sha256.Size { // the CRCs are little-endian in the file, hash.Hash is big-endian
		slices.Reverse(got)
	}
	if !bytes.Equal(got, want) {
		return nil, fmt.Errorf("xz block: check %x, want %x: %w", got, want, elfimage.ErrFormat)
	}
	return out, nil
}

// xzBlockHeader reads the rest of a block header, n bytes and its CRC, and returns the size of the dictionary, bytes.
func xzBlockHeader(r *elfimage.Reader, n int) (dict int, err error) {
	start := r.Off - 1
	body, sum := r.Take(uint64(n-1)), r.U32()
	if r.Bad || crc32.ChecksumIEEE(r.B[start:start+n]) != sum {
		return 0, fmt.Errorf("xz block header of %d bytes at %#x: %w", n, start, elfimage.ErrFormat)
	}
	h := elfimage.Reader{B: body}
	flags := h.U8()
	for bit := flags & xzBlockSizes; bit != 0; bit &= bit - 1 {
		h.Leb()
	}
	filter, properties, code := h.ULEB(), h.ULEB(), h.U8()
	if h.Bad || flags&^byte(xzBlockSizes) != 0 || filter != xzFilterLZMA || properties != 1 {
		return 0, fmt.Errorf("xz block with flags %#x, filter %#x, want LZMA2 alone: %w", flags, filter, elfimage.ErrFormat)
	}
	size, err := lzma.DecodeDictCap(code)
	if err != nil || size > maxXZDict {
		return 0, fmt.Errorf("xz dictionary of %d bytes, at most %d: %w", size, maxXZDict, elfimage.ErrFormat)
	}
	return int(size), nil
}
