// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"

	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/symbolize"
)

// reportPrefix begins the mangled name of c10::reportMemoryUsageToProfiler in every version of PyTorch.
const reportPrefix = "_ZN3c1027reportMemoryUsageToProfilerE"

// Places of Block's fields, bytes (struct Block of c10/cuda/CUDACachingAllocator.cpp). Behind the size are the requested
// size, the pool, the device address, two flags, and the neighbours: the same in all wheels of 2.0.1 to 2.15.0. PyTorch
// 1.13.1 does not keep the requested size; the rest is the same.
const (
	fromSizeToRequested = 0x08
	fromSizeToPool      = 0x10
	fromSizeToPtr       = 0x18

	fromPoolToPtr       = 0x08
	fromPoolToAllocated = 0x10
	fromPoolToMapped    = 0x11 // since 2.1
	fromPoolToPrev      = 0x18
	fromPoolToNext      = 0x20
	fromPoolToEnd       = 0x28 // of what is read

	blockDevice = 0x00 // int8
	blockStream = 0x08

	// Before the size are the device, the stream and the set of streams that use the block.
	minSizeOffset, maxSizeOffset = 0x10, 0x60
)

// shape is where in a Block its fields are.
type shape struct {
	size      uint64 // offset, bytes
	requested bool   // the requested size is kept, behind the size
}

// pool is the offset of the pointer to the pool, bytes.
func (s shape) pool() uint64 {
	if s.requested {
		return s.size + fromSizeToPool
	}
	return s.size + fromSizeToRequested
}

// end is how many bytes of a Block are read.
func (s shape) end() uint64 { return s.pool() + fromPoolToEnd }

// BlockSite is a call of the report of an allocation at which the allocator's Block can be found: its address lies in the
// caller's frame. The other fields of the Block follow from the size: requested size at +0x08 from it, pool at +0x10; the
// stream is at 0x08 of the Block. What is read so must be checked: the Block's ptr and size are the report's arguments.
type BlockSite struct {
	// Return is the link-time address of the instruction behind the call: the return address, less the bias.
	Return uint64
	// BaseSP says that Offset counts from the caller's stack pointer at the call, that is 8 above its value at the entry of
	// the report. Otherwise it counts from the frame pointer.
	BaseSP bool
	// Offset is where the 8-byte address of the Block lies, bytes.
	Offset int32
	// SizeOffset and PtrOffset are the places of the size and the device address in the Block, bytes.
	SizeOffset, PtrOffset uint16
}

// BlockStream is the place of the stream in the Block, bytes.
const BlockStream = blockStream

// RequestedOffset is the place of the requested size in the Block, bytes.
func (s *BlockSite) RequestedOffset() uint16 { return s.SizeOffset + fromSizeToRequested }

// PoolOffset is the place of the pointer to the pool in the Block, bytes.
func (s *BlockSite) PoolOffset() uint16 { return s.SizeOffset + fromSizeToPool }

// BlockSites finds the calls of c10::reportMemoryUsageToProfiler in an allocator's library (libc10_cuda.so) whose
// arguments are loaded from a Block that lies in memory. It decodes code, and needs no symbols beyond the dynamic ones.
// Calls of another kind are left out: those that report a free, and those where the Block is only in a register. The error
// wraps ErrUnknownLayout when no call is left, and says why.
func BlockSites(f *symbolize.File) ([]BlockSite, error) {
	calls, err := reportCalls(f)
	if err != nil {
		return nil, err
	}
	var sites []BlockSite
	for i := range calls {
		if s, ok := calls[i].blockSite(); ok {
			sites = append(sites, s)
		}
	}
	if len(sites) == 0 {
		return nil, fmt.Errorf("find blocks at the report: %w: none of its %d calls loads from a block", ErrUnknownLayout, len(calls))
	}
	return sites, nil
}

// reportCall is a call of the report function and what its function does before it.
type reportCall struct {
	machine *machinecode.Machine
	path    machinecode.Path
	end     uint64 // link-time address behind the call
}

func reportCalls(f *symbolize.File) ([]reportCall, error) {
	machine := machinecode.For(f.Machine())
	if machine == nil {
		return nil, fmt.Errorf("find calls of the report: %w: code of %s", ErrUnknownLayout, f.Machine())
	}
	var out []reportCall
	for _, at := range machinecode.ImportCalls(f, reportPrefix) {
		if p, end, ok := machinecode.PathTo(f, at); ok {
			out = append(out, reportCall{machine, p, end})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("find calls of the report: %w: no call of %s*", ErrUnknownLayout, reportPrefix)
	}
	return out, nil
}

// blockSite recognises, for any registers:
//
//	mov slot(%rbp),%rax ; ... ; mov SIZE(%rax),%rsi ; mov PTR(%rax),%rdi ; ... ; call report
//	ldr x20, [sp, slot] ; ... ; ldr x1, [x20, SIZE] ; ldr x0, [x20, PTR] ; ... ; blr report
//
// of a Block that has a requested size.
func (c *reportCall) blockSite() (BlockSite, bool) {
	size, ptr, slot, ok := c.blockLoads()
	if !ok || ptr.Offset != size.Offset+fromSizeToPtr {
		return BlockSite{}, false
	}
	return BlockSite{
		Return: c.end, BaseSP: slot.Base == c.machine.Stack, Offset: int32(slot.Offset),
		SizeOffset: uint16(size.Offset), PtrOffset: uint16(ptr.Offset),
	}, true
}

// shape is that of the Block from which the arguments are loaded, in either form.
func (c *reportCall) shape() (shape, bool) {
	size, ptr, _, ok := c.blockLoads()
	if !ok {
		return shape{}, false
	}
	for _, requested := range []bool{true, false} {
		s := shape{size: uint64(size.Offset), requested: requested}
		if uint64(ptr.Offset) == s.pool()+fromPoolToPtr {
			return s, true
		}
	}
	return shape{}, false
}

// blockLoads finds the loads of the two arguments, and of the address of the object from which both come.
func (c *reportCall) blockLoads() (size, ptr, slot machinecode.Read, ok bool) {
	ptr, ok1 := c.path.LoadOf(c.machine.Arguments[0])
	size, ok2 := c.path.LoadOf(c.machine.Arguments[1])
	if !ok1 || !ok2 || size.Offset < minSizeOffset || size.Offset > maxSizeOffset || size.Offset%8 != 0 {
		return size, ptr, slot, false
	}
	slot, ok1 = c.slot(ptr)
	other, ok2 := c.slot(size)
	return size, ptr, slot, ok1 && ok2 && slot.Base == other.Base && slot.Offset == other.Offset
}

// slot is the place in the frame from which the base of a load came. It must still mean the same at the call.
func (c *reportCall) slot(from machinecode.Read) (machinecode.Read, bool) {
	l, ok := c.path[:from.Index].LoadOf(from.Base)
	if !ok || l.Base != c.machine.Frame && l.Base != c.machine.Stack || int64(int32(l.Offset)) != l.Offset {
		return machinecode.Read{}, false
	}
	for i := l.Index + 1; i < len(c.path); i++ {
		if inst := &c.path[i]; inst.Writes(l.Base) || inst.Stored(l) {
			return machinecode.Read{}, false
		}
	}
	return l, true
}

// totals is where in the object that has a device's state the two totals lie, which every call of the report loads.
func (c *reportCall) totals() (allocated, reserved uint64, ok bool) {
	a, ok1 := c.path.LoadOf(c.machine.Arguments[2])
	r, ok2 := c.path.LoadOf(c.machine.Arguments[3])
	if !ok1 || !ok2 || a.Base == 0 || a.Base != r.Base || a.Offset <= 0 || r.Offset <= 0 {
		return 0, 0, false
	}
	return uint64(a.Offset), uint64(r.Offset), true
}
