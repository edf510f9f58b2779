// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAddressMask: rows of what processors and hypervisors answer. The figures of EBX are those of the AMD APM's example, of EPYCs
// of the second and fourth generation.
func TestAddressMask(t *testing.T) {
	const (
		epyc2 = 5<<6 | 47 // of EBX: 5 bits of the address are lost while memory is encrypted
		epyc4 = 6<<6 | 51
	)
	for name, c := range map[string]struct {
		leaves map[uint32][4]uint32
		want   uint64
	}{
		"nothing known":    {nil, 1<<36 - 4096},
		"46 bits":          {map[uint32][4]uint32{leafHighest: {leafAddress}, leafAddress: {0x302e}}, 1<<46 - 4096},
		"52 bits":          {map[uint32][4]uint32{leafHighest: {leafAddress}, leafAddress: {52}}, 1<<52 - 4096},
		"more than can be": {map[uint32][4]uint32{leafHighest: {leafAddress}, leafAddress: {0xff}}, 1<<52 - 4096},
		"no encryption":    {map[uint32][4]uint32{leafHighest: {leafEncryption}, leafAddress: {48}, leafEncryption: {0, epyc2}}, 1<<48 - 4096},
		"SME, bit 47":      {map[uint32][4]uint32{leafHighest: {leafEncryption}, leafAddress: {48}, leafEncryption: {1, epyc2}}, 1<<47 - 4096},
		"SEV, bit 47 of 52": {map[uint32][4]uint32{leafHighest: {leafEncryption}, leafAddress: {52}, leafEncryption: {2, epyc2}},
			(1<<52 - 4096) &^ (1 << 47)},
		"SEV, bit 51": {map[uint32][4]uint32{leafHighest: {leafEncryption}, leafAddress: {52}, leafEncryption: {0x1f, epyc4}},
			1<<51 - 4096},
		"SEV, bit 51 of 48": {map[uint32][4]uint32{leafHighest: {leafEncryption}, leafAddress: {48}, leafEncryption: {2, epyc4}}, 1<<48 - 4096},
		"not so far": {map[uint32][4]uint32{leafHighest: {leafEncryption - 1}, leafAddress: {48}, leafEncryption: {3, epyc2}},
			1<<48 - 4096},
		"TDX": {map[uint32][4]uint32{leafBasic: {leafTDX}, leafTDX: {0, 0x65746e49, 0x20202020, 0x5844546c},
			leafHighest: {leafAddress}, leafAddress: {52}}, 1<<51 - 4096 - 1<<47},
		"another leaf 21": {map[uint32][4]uint32{leafBasic: {leafTDX}, leafTDX: {0, 1, 2, 3}, leafHighest: {leafAddress}, leafAddress: {52}},
			1<<52 - 4096},
	} {
		t.Run(name, func(t *testing.T) {
			p := readProcessor(func(leaf, _ uint32) (eax, ebx, ecx, edx uint32) {
				r := c.leaves[leaf]
				return r[0], r[1], r[2], r[3]
			})
			require.Equal(t, c.want, p.addressMask(), "%#x", p.addressMask())
		})
	}
}

// TestProcessor compares with what the kernel says of the processor: fewer bits while memory is encrypted.
func TestProcessor(t *testing.T) {
	b, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	m := regexp.MustCompile(`address sizes\s*: (\d+) bits physical`).FindSubmatch(b)
	require.NotNil(t, m)
	stated, err := strconv.ParseUint(string(m[1]), 10, 32)
	require.NoError(t, err)
	p := readProcessor(cpuid)
	require.LessOrEqual(t, uint32(stated), p.bits)
	if !p.encrypts && !p.tdx {
		require.Equal(t, uint32(stated), p.bits)
	}
}
