// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
)

// decide evaluates each cause separately, and decides for the first one that is enough alone. If none is, too much was requested.
func (c *Case) decide() {
	c.setLimit()
	c.setUnseen()
	c.setNeed()
	c.Causes = c.evaluate()
	c.Decision = Full
	for i := range c.Causes {
		switch x := &c.Causes[i]; {
		case x.Alone == No, x.Alone == Unknown && x.Decision != Limit:
		case c.Decision == Full:
			c.Decision = x.Decision
		case x.Decision != Loading && x.Alone == Yes && (x.Decision != LargerStep || !c.fills()):
			c.Also = append(c.Also, x.Decision)
		}
	}
	switch {
	case !c.Reported && !c.Own:
		c.Decision, c.Also = DriverError, nil
	case c.isAbsurd():
		c.Decision, c.Also = AbsurdRequest, nil
	case c.Decision == LargerStep: // this step requests too much
		c.Decision, c.Larger = Full, true
	}
}

// setLimit concludes that the program has a limit of its own if PyTorch refuses a request without asking the driver.
// The limit is then smaller than the reserved memory would have become, which selects it among the values that were
// read; if it matches none or several of them, only bounds are known.
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

// segmentOf returns the size of the segment that the allocator obtains for a request, bytes: get_allocation_size of
// CUDACachingAllocator.cpp.
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

// setNeed sets how much was missing.
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
		c.Need = asked // an upper bound
	case c.Free != event.Unknown && asked > c.Free:
		c.Need = asked - c.Free
	default:
		c.Need = asked
	}
}

// limited returns the memory to which Limit applies: PyTorch's segments or, with MPS, all of the process's memory on the device.
func (c *Case) limited() uint64 {
	if c.Device.Type.MPS() {
		return c.OnMPS()
	}
	return c.Torch.Reserved
}

// OnMPS returns Metal's count for the process, which PyTorch's MPS allocator compares with its limit ("MPS allocated",
// "other allocations" and "max allowed" in its message, ATen/mps/MPSAllocator.mm).
func (c *Case) OnMPS() uint64 {
	all := c.Torch.Reserved + c.Other.Bytes
	if c.Context != event.Unknown {
		all += c.Context
	}
	return all
}

// largestDevice is larger than any device, bytes: it bounds a request if the size of the device is not known.
const largestDevice = 1 << 40

// isAbsurd reports whether no device, or not this one, could serve the request. With MPS, exceeding the recommended
// size is no error, but exceeding the higher limit is.
func (c *Case) isAbsurd() bool {
	if c.Device.Type.MPS() {
		return c.Limit != event.Unknown && c.LimitBelow == 0 && c.Requested > c.Limit
	}
	if c.Requested == event.Unknown {
		return false
	}
	if c.Total == event.Unknown {
		return c.Requested > largestDevice
	}
	return c.Requested > c.Total
}

// growing returns the memory of the findings that are certain enough, bytes, at most the rise of the memory between steps.
func (c *Case) growing() uint64 {
	var out uint64
	for i := range c.Findings {
		if f := &c.Findings[i]; isCertain(f) && !math.IsNaN(f.Bytes) {
			out += f.LiveBytes
		}
	}
	return min(out, c.net)
}

// longPeriod is the number of steps between two rises from which few rises suffice: a warm-up does not last that long.
const longPeriod = 8

// isCertain reports whether a finding counts as a cause. Equal amounts at equal long distances do even if there are few of them: that
// a queue may have filled changes nothing about the failure.
func isCertain(f *leaks.Finding) bool {
	return f.Confidence != leaks.Low || f.Kind == leaks.Leak && f.Period >= longPeriod
}

// isOther reports whether a pool other than the request's has free memory that the request could use: a large enough
// piece, or whole segments, which would go back to the driver.
func (c *Case) isOther(p *PoolFree) bool { return !p.Request && c.usable(p) > 0 }

// usable returns how much of the free memory of a pool a request of another pool could use, if it were allowed to.
func (c *Case) usable(p *PoolFree) uint64 {
	if p.Largest >= c.Requested {
		return p.Free
	}
	return p.FreeWhole
}

// InOtherPools returns the free memory of private pools, and of other streams, that the request could use if it
// belonged to them, bytes.
func (c *Case) InOtherPools() uint64 {
	var out uint64
	for i := range c.Pools {
		if p := &c.Pools[i]; c.isOther(p) {
			out += c.usable(p)
		}
	}
	return out
}

// FreePrivate returns the free memory of private pools, and its largest piece, bytes. A CUDA graph needs this memory
// when it runs again.
func (c *Case) FreePrivate() (free, largest uint64) {
	for i := range c.Pools {
		if p := &c.Pools[i]; p.Private && !p.Request {
			free, largest = free+p.Free, max(largest, p.Largest)
		}
	}
	return free, largest
}

// OtherPool returns the pool with the largest part of InOtherPools; the zero value if there is none.
func (c *Case) OtherPool() *PoolFree {
	out := &PoolFree{}
	for i := range c.Pools {
		if p := &c.Pools[i]; c.isOther(p) && c.usable(p) > c.usable(out) {
			out = p
		}
	}
	return out
}
