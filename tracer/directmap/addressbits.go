// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package directmap

import "encoding/binary"

// pageBytes is the size of the smallest page.
const pageBytes = 4096

// cpuid is the processor's instruction (cpuid_amd64.s).
func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)

// Leaves of CPUID (Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E; Intel TDX module specification, CPUID 21H).
const (
	leafHighest    = 0x80000000 // EAX: the last leaf of this kind
	leafAddress    = 0x80000008 // EAX, bits 0 to 7: bits of a physical address
	leafEncryption = 0x8000001f // EAX, bit 0: SME, bit 1: SEV; EBX, bits 0 to 5: the bit of an entry that says encrypted
	leafBasic      = 0          // EAX: the last leaf of this kind
	leafTDX        = 0x21       // EBX EDX ECX: "IntelTDX    "
)

// entryAddress are the bits of an entry of a page table that can be an address at all (Intel SDM volume 3A, section 4.5).
const entryAddress = 1<<52 - pageBytes

// minAddressBits holds where the processor does not say it (AMD APM volume 3, E.4.7).
const minAddressBits = 36

// processor is what CPUID says of physical addresses.
type processor struct {
	bits      uint32 // of an address
	encrypts  bool   // with SME or SEV
	encrypted uint32 // the bit that says so
	tdx       bool   // a guest of TDX: the highest bit of an address says that the page is shared with the host
}

// readProcessor asks by CPUID.
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

// sharedBits are where a guest of TDX has the bit that says shared: it depends on what the host gave it, 48 or 52 bits. No guest has
// so much memory that one of them is in an address.
const sharedBits = 1<<47 | 1<<51

// addressMask is what of an entry of a page table is a physical address. The bit that says encrypted is none, also where the
// encryption is not switched on: then it would be an address of more memory than a machine has.
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
