// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// A part of memory is a reason only where it is large, beside being enough for the request: so much of what PyTorch has allocated, of what
// it has reserved, of the device. They are one part in so many.
const (
	leakShare      = 10
	piecesShare    = 20
	elsewhereShare = 10
)

// decide finds the first reason that is proved. The order is that of docs/oom.md.
func (c *Case) decide() {
	c.setLimit()
	c.setNeed()
	for _, rule := range []struct {
		decision Decision
		holds    func() bool
	}{
		{DriverError, func() bool { return !c.Reported && !c.Own }},
		{AbsurdRequest, c.isAbsurd},
		{Leak, c.leaks},
		{Fragmentation, c.isFragmented},
		{PrivatePool, c.isInOtherPool},
		{Limit, func() bool { return c.Limit != event.Unknown }},
		{OtherProcess, c.othersHave},
		{OutsidePyTorch, c.outsideHas},
		{Full, func() bool { return true }},
	} {
		if !rule.holds() {
			continue
		}
		switch {
		case c.Decision == "":
			c.Decision = rule.decision
		case rule.decision != Full:
			c.Also = append(c.Also, rule.decision)
		}
		if c.Decision != Leak {
			return
		}
	}
}

// setLimit concludes that there is a limit of the program's own where PyTorch refuses a request without having asked the driver. Then
// the limit is below what would have been reserved with it. That decides which of the values that were read it is; where none or
// several are, the bounds are known.
func (c *Case) setLimit() {
	c.Limit, c.LimitBelow = event.Unknown, 0
	if !c.Reported || c.Tries > 0 || c.Torch.Reserved == event.Unknown {
		return
	}
	least, below := c.Torch.Reserved, c.Torch.Reserved+segmentOf(c.Requested)
	if c.Device.Type.MPS() {
		least = c.OnMPS()
		below = least + segmentOf(c.Requested)
	}
	fits := slices.DeleteFunc(slices.Clone(c.limits), func(l uint64) bool { return l < least || l >= below })
	switch {
	case len(fits) == 1:
		c.Limit = fits[0]
	case c.asks:
		c.Limit, c.LimitBelow = least, below
	}
}

// segmentOf is the segment that the allocator obtains for a request, bytes: get_allocation_size of CUDACachingAllocator.cpp.
func segmentOf(size uint64) uint64 {
	const small, large, least = 2 << 20, 20 << 20, 10 << 20
	switch {
	case size <= fragments.SmallSize:
		return small
	case size < least:
		return large
	}
	return (size + small - 1) / small * small
}

// setNeed says how much more had to be free.
func (c *Case) setNeed() {
	asked := c.Asked
	if asked == event.Unknown && c.Reported {
		asked = segmentOf(c.Requested)
	}
	if !c.Reported {
		asked = c.Requested
	}
	switch {
	case asked == event.Unknown:
	case c.Limit != event.Unknown && c.LimitBelow == 0 && c.limited()+asked > c.Limit:
		c.Need = c.limited() + asked - c.Limit
	case c.Limit != event.Unknown:
		c.Need = asked // at most
	case c.Free != event.Unknown && asked > c.Free:
		c.Need = asked - c.Free
	default:
		c.Need = asked
	}
}

// limited is what Limit is of: PyTorch's segments; with MPS all that the process has of the device.
func (c *Case) limited() uint64 {
	if c.Device.Type.MPS() {
		return c.OnMPS()
	}
	return c.Torch.Reserved
}

// OnMPS is what Metal counts for the process, which is what PyTorch's MPS allocator compares with its limit ("MPS allocated", "other
// allocations" and "max allowed" of its message, ATen/mps/MPSAllocator.mm).
func (c *Case) OnMPS() uint64 {
	all := c.Torch.Reserved + c.Other.Bytes
	if c.Context != event.Unknown {
		all += c.Context
	}
	return all
}

// isAbsurd: with MPS more than the recommended size is no error, but more than the limit, which is above that.
func (c *Case) isAbsurd() bool {
	if c.Device.Type.MPS() {
		return c.Limit != event.Unknown && c.LimitBelow == 0 && c.Requested > c.Limit
	}
	return c.Total != event.Unknown && c.Requested != event.Unknown && c.Requested > c.Total
}

// enough reports whether a part of memory would have made the request fit, and is at least one part in share of whole.
func (c *Case) enough(part, whole, share uint64) bool {
	return part != event.Unknown && whole != event.Unknown && c.Need != event.Unknown && part >= c.Need && part >= whole/share
}

// Growing is what the findings hold that are certain enough, bytes.
func (c *Case) Growing() uint64 {
	var out uint64
	for i := range c.Findings {
		if f := &c.Findings[i]; f.Confidence != leaks.Low && !math.IsNaN(f.Bytes) {
			out += f.LiveBytes
		}
	}
	return out
}

func (c *Case) leaks() bool { return c.enough(c.Growing(), c.Torch.Allocated, leakShare) }

// isFragmented: not where the step has grown beyond those before by more than what is in pieces, which would have been used up soon.
func (c *Case) isFragmented() bool {
	return c.Largest < c.Requested && c.Pieces >= c.Requested && c.enough(c.Pieces, c.Torch.Reserved, piecesShare) && !c.outgrows(c.Pieces)
}

// outgrows reports whether one line keeps so much in this step that it is more than so many bytes beyond the peak of the steps before.
func (c *Case) outgrows(bytes uint64) bool {
	return c.Grown.Site != "" && c.Torch.Allocated > c.Healthy && c.Torch.Allocated-c.Healthy > bytes
}

// isOther reports whether a pool that is not the request's has a piece that is large enough.
func (c *Case) isOther(p *PoolFree) bool { return !p.Request && p.Largest >= c.Requested }

// InOtherPools is the free memory of the segments of private pools, and of other streams, that is in pieces large enough, bytes.
func (c *Case) InOtherPools() uint64 {
	var out uint64
	for i := range c.Pools {
		if p := &c.Pools[i]; c.isOther(p) {
			out += p.Free
		}
	}
	return out
}

// FreePrivate is what is free in private pools, and the largest piece of it, bytes. A CUDA graph needs it when it runs again.
func (c *Case) FreePrivate() (free, largest uint64) {
	for i := range c.Pools {
		if p := &c.Pools[i]; p.Private && !p.Request {
			free, largest = free+p.Free, max(largest, p.Largest)
		}
	}
	return free, largest
}

// OtherPool is the one of InOtherPools that is the first; the zero value: there is none.
func (c *Case) OtherPool() *PoolFree {
	for i := range c.Pools {
		if p := &c.Pools[i]; c.isOther(p) {
			return p
		}
	}
	return &PoolFree{}
}

func (c *Case) isInOtherPool() bool { return c.enough(c.InOtherPools(), c.Torch.Reserved, piecesShare) }

func (c *Case) othersHave() bool {
	return c.enough(c.Others, c.Total, elsewhereShare) && c.Others >= c.Other.Bytes
}

// outsideHas: by what the driver was asked for; where the device's size is not known it must be a part of what the process has.
func (c *Case) outsideHas() bool {
	whole := c.Total
	if whole == event.Unknown {
		whole = figures.Add(c.held(), c.Other.Bytes)
	}
	return c.enough(c.Other.Bytes, whole, elsewhereShare)
}
