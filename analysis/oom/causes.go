// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Cause is one possible reason why memory was missing, with the effect of removing it.
type Cause struct {
	Decision Decision // names the cause
	Bytes    uint64   // that would have been free without it; event.Unknown
	// Usual is the part of Bytes that earlier steps, which did not fail, had too; event.Unknown: no earlier steps, or not observed.
	Usual uint64
	// Alone says whether removing only this cause would have made room for the request and what followed it in earlier steps.
	Alone Answer
}

// Beyond returns how much of a cause is more than usual, bytes.
func (x Cause) Beyond() uint64 {
	if x.Bytes == event.Unknown {
		return 0
	}
	if x.Usual == event.Unknown {
		return x.Bytes
	}
	return x.Bytes - min(x.Usual, x.Bytes)
}

// Cause returns the cause of a decision; the zero value if there is none.
func (c *Case) Cause(d Decision) Cause {
	for i := range c.Causes {
		if c.Causes[i].Decision == d {
			return c.Causes[i]
		}
	}
	return Cause{Decision: d}
}

// A part of memory counts as a cause only if it would be enough and is a minimum share (one in this number) of PyTorch's
// reserved memory or of the device. Leaks and larger steps have no such bound, because a change explains a failure.
const (
	piecesShare    = 20
	elsewhereShare = 10
)

// followShare: if no earlier step has made the request, 1/followShare of what the step has added so far, or of all
// allocated memory without steps, is assumed to be needed after it. A loop that fills the device, such as one that loads a model,
// is assumed to need as much again as its line has added.
const followShare = 4

// evaluate computes the causes. Those that are enough alone come first, sorted by how far they exceed what is usual. Loading comes
// after all others, because the program wants what it loads, and so does a loop after the last step that fills the device.
func (c *Case) evaluate() []Cause {
	all := []Cause{
		c.growth(), c.larger(), c.fragmented(), c.otherPools(), c.ownLimit(), c.otherProcesses(), c.outside(), c.pending(), c.cached(),
		c.attempted(), c.ended(), c.loadedTwice(), c.loading(),
	}
	var out []Cause
	for _, x := range all {
		if x.Bytes != 0 {
			out = append(out, x)
		}
	}
	rank := func(x *Cause) int {
		switch {
		case x.Decision == Loading, x.Decision == LargerStep && c.fills():
			return 1
		case x.Alone == Yes && x.Decision == Leak && c.Doubt == leaks.FewRises:
			return 3 // whatever else is enough is more certain
		case x.Alone == Yes && x.Decision == LargerStep && c.Doubt == leaks.MayBeOver:
			return 4 // the step needs more than any before because it is not one of them
		case x.Alone == Yes && x.Decision == Leak && c.Doubt == leaks.MayBeOver:
			return 5
		case x.Alone == Yes && x.Decision == LargerStep && c.attempted().Alone == Yes:
			return 5 // because of what the attempt has left
		case x.Alone == Yes:
			return 6
		case x.Alone == Unknown:
			return 2
		}
		return 0
	}
	sorts.Func(out, func(x, y Cause) int {
		return cmp.Or(cmp.Compare(rank(&y), rank(&x)), cmp.Compare(y.Beyond(), x.Beyond()))
	})
	return out
}

// fills reports whether the excess of the step over earlier ones belongs to no pass of a model: a loop after the last
// step fills the device.
func (c *Case) fills() bool {
	if c.State > 0 || isPass(c.Phase) || isPass(c.Grown.Phase) {
		return false
	}
	return c.Phase == phases.Other || c.Grown.Site != "" && c.Grown.Site == c.Site
}

// isPass reports whether a phase is a computation with the model.
func isPass(p phases.Phase) bool {
	switch p {
	case phases.Forward, phases.Backward, phases.Optimizer, phases.Evaluation:
		return true
	}
	return false
}

// follows returns how much memory is needed after the request, beyond the request itself, bytes.
func (c *Case) follows() uint64 {
	switch {
	case c.Follows != event.Unknown:
		return c.Follows
	case c.Torch.Allocated == event.Unknown:
		return 0
	case c.floor != event.Unknown && (c.fills() || c.Phase == phases.Setup) && c.Grown.Site == "":
		return c.Torch.Allocated - min(c.floor, c.Torch.Allocated)
	case c.floor != event.Unknown && (c.fills() || c.Phase == phases.Setup) && c.Grown.Site == c.Site:
		return c.Grown.Bytes
	case c.floor != event.Unknown:
		return (c.Torch.Allocated - min(c.floor, c.Torch.Allocated)) / followShare
	}
	return c.Torch.Allocated / followShare
}

// asked returns how much had to be obtained for the request, bytes.
func (c *Case) asked() uint64 {
	switch {
	case c.Asked != event.Unknown:
		return c.Asked
	case c.Reported:
		return segmentOf(c.Requested)
	}
	return c.Requested
}

// short returns how much was missing for the request, bytes: below the program's own limit, if there is one, and on the device.
func (c *Case) short() uint64 {
	asked := c.asked()
	if asked == event.Unknown || c.Need == event.Unknown || !c.binds() || c.Free == event.Unknown || c.Device.Type.MPS() {
		return c.Need
	}
	return max(c.Need, asked-min(asked, c.Free))
}

// missing returns how much was missing for the request and what follows, bytes. What follows can use the rest of the segment.
func (c *Case) missing() uint64 {
	asked, short := c.asked(), c.short()
	if asked == event.Unknown || short == event.Unknown {
		return event.Unknown
	}
	return short + max(asked, c.Requested+c.follows()) - asked
}

// suffices reports whether this number of additional bytes would have been enough.
func (c *Case) suffices(bytes uint64) Answer {
	missing := c.missing()
	switch {
	case bytes == event.Unknown || missing == event.Unknown:
		return Unknown
	case bytes >= missing:
		return Yes
	}
	return No
}

// share returns an answer, or No if a part is smaller than 1/n of a whole.
func share(answer Answer, part, whole uint64, n uint64) Answer {
	if answer == Yes && (whole == event.Unknown || part < whole/n) {
		return No
	}
	return answer
}

// hasEarlier reports whether steps before the failing one show what is usual.
func (c *Case) hasEarlier() bool { return c.Healthy != event.Unknown }

// growth returns the memory that growing lines had kept when the request failed.
func (c *Case) growth() Cause {
	grown := c.growing()
	return Cause{Leak, grown, 0, c.suffices(grown)}
}

// larger returns how much more the step needs than each earlier one: beyond the highest of them, without growth from
// step to step, or beyond the largest addition of a step to the memory at its beginning.
func (c *Case) larger() Cause {
	x := Cause{Decision: LargerStep}
	switch {
	case c.State > 0:
		x.Bytes = c.State + c.Requested
	case c.hasEarlier() && c.Torch.Allocated != event.Unknown && c.Requested != event.Unknown:
		level := c.Torch.Allocated + c.Requested
		if c.served { // it is the memory beside the request that is more
			level = c.Torch.Allocated
		}
		if usual := c.Healthy + c.growing(); level > usual {
			x.Bytes = level - usual
		}
		if added, usual := level-min(level, c.floor), c.rise; c.floor != event.Unknown && usual != event.Unknown && added > usual {
			x.Bytes = max(x.Bytes, added-usual)
		}
	}
	if x.Bytes >= c.short() { // the earlier steps fitted, with all that follows
		x.Alone = Yes
	} else {
		x.Alone = No
	}
	return x
}

// fragmented returns the free memory in segments of the request's pool, in pieces that are too small.
func (c *Case) fragmented() Cause {
	x := Cause{Fragmentation, c.Pieces, event.Unknown, No}
	if c.hasEarlier() {
		x.Usual = c.idle
	}
	if c.Largest >= c.Requested || c.Requested == event.Unknown || c.Need == event.Unknown || c.Async {
		return x
	}
	room := c.asked() - min(c.short(), c.asked())
	if c.Pieces+room >= c.Requested+c.follows() {
		x.Alone = share(Yes, c.Pieces, c.Torch.Reserved, piecesShare)
	}
	return x
}

func (c *Case) otherPools() Cause {
	free := c.InOtherPools()
	x := Cause{PrivatePool, free, event.Unknown, share(c.suffices(free), free, c.Torch.Reserved, piecesShare)}
	if c.hasEarlier() {
		x.Usual = c.kept
	}
	return x
}

// ownLimit returns the free memory of the device that the program's own limit withheld.
func (c *Case) ownLimit() Cause {
	x := Cause{Limit, 0, event.Unknown, No}
	if c.Limit == event.Unknown {
		return x
	}
	asked := c.asked()
	switch {
	case c.Free == event.Unknown || asked == event.Unknown || c.Device.Type.MPS():
		x.Bytes, x.Alone = event.Unknown, Unknown
	default:
		x.Bytes = c.Free - min(c.Free, asked-min(asked, c.Need))
		if x.Alone = No; c.Free >= max(asked, c.Requested+c.follows()) {
			x.Alone = Yes
		}
	}
	if c.hasEarlier() {
		x.Usual = x.Bytes
	}
	return x
}

// binds reports whether the program's own limit refused the request, so that a larger device would not have helped.
func (c *Case) binds() bool { return c.Limit != event.Unknown }

func (c *Case) otherProcesses() Cause {
	others := c.othersLeast()
	x := Cause{OtherProcess, others, event.Unknown, share(c.suffices(others), others, c.Total, elsewhereShare)}
	if c.hasEarlier() {
		x.Usual = c.usualOthers
	}
	if c.binds() {
		x.Alone = No
	}
	return x
}

// outside returns the process's memory outside PyTorch's allocator, according to its calls of the driver. If the
// device's size is not known, it must be a minimum share of the process's memory.
func (c *Case) outside() Cause {
	whole := c.Total
	if whole == event.Unknown {
		whole = figures.Add(c.held(), c.Other.Bytes)
	}
	x := Cause{OutsidePyTorch, c.Other.Bytes, event.Unknown, share(c.suffices(c.Other.Bytes), c.Other.Bytes, whole, elsewhereShare)}
	if c.hasEarlier() {
		x.Usual = c.usualOther
	}
	if c.binds() && !c.Device.Type.MPS() {
		x.Alone = No
	}
	return x
}

// pending returns freed memory that waits for another stream. PyTorch waits for it before it reports a failure, except
// while a graph is captured.
func (c *Case) pending() Cause {
	x := Cause{PendingFrees, c.Torch.Pending, event.Unknown, No}
	if x.Bytes == event.Unknown {
		x.Bytes = 0
	}
	x.Alone = share(c.suffices(x.Bytes), x.Bytes, c.Torch.Reserved, piecesShare)
	return x
}

// cached returns the free memory that PyTorch's allocator keeps, for a request that is not PyTorch's: it returns the
// cache only for its own requests.
func (c *Case) cached() Cause {
	x := Cause{Decision: Cached, Usual: event.Unknown}
	if !c.Reported && !c.Own && c.Torch.Free != event.Unknown {
		x.Bytes = c.Torch.Free
	}
	x.Alone = c.suffices(x.Bytes)
	return x
}

// loading returns the memory that a loop allocated before there were steps. A forward pass without earlier steps loads nothing.
func (c *Case) loading() Cause {
	x := Cause{Decision: Loading, Usual: event.Unknown}
	if !isPass(c.Fill.Phase) {
		x.Bytes = c.Fill.Bytes
	}
	if x.Alone = No; x.Bytes >= c.Need {
		x.Alone = Yes
	}
	return x
}
