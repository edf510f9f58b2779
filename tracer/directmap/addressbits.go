// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import "encoding/binary"

// pageBytes is the size of the smallest page.
const pageBytes = 4096

// cpuid executes the processor's instruction (cpuid_amd64.s); elsewhere it returns zeros.
func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)

// Leaves of CPUID (Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E; Intel TDX module specification, CPUID 21H).
const (
	leafHighest    = 0x80000000 // EAX: the last extended leaf
	leafAddress    = 0x80000008 // EAX, bits 0 to 7: number of physical address bits
	leafEncryption = 0x8000001f // EAX, bit 0: SME, bit 1: SEV; EBX, bits 0 to 5: the entry bit that means encrypted
	leafBasic      = 0          // EAX: the last basic leaf
	leafTDX        = 0x21       // EBX EDX ECX: "IntelTDX    "
)

// entryAddress are the bits of a page table entry that can be part of an address (Intel SDM volume 3A, section 4.5).
const entryAddress = 1<<52 - pageBytes

// minAddressBits is used if the processor does not report the number (AMD APM volume 3, E.4.7).
const minAddressBits = 36

// processor is CPUID's information about physical addresses.
type processor struct {
	bits      uint32 // number of address bits
	encrypts  bool   // supports SME or SEV
	encrypted uint32 // number of the entry bit that means encrypted
	tdx       bool   // a guest of TDX: the highest address bit means that the page is shared with the host
}

// readProcessor reads it with CPUID.
func readProcessor(cpuid func(leaf, sub uint32) (eax, ebx, ecx, edx uint32)) processor {
	p := processor{bits: minAddressBits}
	highest, _, _, _ := cpuid(leafHighest, 0)
	if highest >= leafAddress {
		sizes, _, _, _ := cpuid(leafAddress, 0)
		p.bits = sizes & 0xff
	}
	if highest >= leafEncryption {
		can, bit, _, _ := cpuid(leafEncryption, 0)
		p.encrypts, p.encrypted = can&3 != 0, bit&0x3f
	}
	if basic, _, _, _ := cpuid(leafBasic, 0); basic >= leafTDX {
		_, b, c, d := cpuid(leafTDX, 0)
		name := binary.LittleEndian.AppendUint32(nil, b)
		name = binary.LittleEndian.AppendUint32(name, d)
		p.tdx = string(binary.LittleEndian.AppendUint32(name, c)) == "IntelTDX    "
	}
	return p
}

// sharedBits are the possible positions of the shared bit in a guest of TDX, which has 48 or 52 address bits, as the
// host decides. No guest has enough memory for these bits to be part of an address.
const sharedBits = 1<<47 | 1<<51

// addressMask returns the bits of a page table entry that are a physical address. It excludes the encryption bit even
// if encryption is off, because as an address bit it would exceed any machine's memory.
func (p *processor) addressMask() uint64 {
	mask := uint64(1)<<p.bits - pageBytes
	if p.bits >= 52 {
		mask = entryAddress
	}
	if p.encrypts {
		mask &^= 1 << p.encrypted
	}
	if p.tdx {
		mask &^= sharedBits
	}
	return mask
}
