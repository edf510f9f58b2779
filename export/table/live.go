// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/heap"
)

// Live is what LiveLine shows beside the totals.
type Live struct {
	Now  time.Time // of day, printed in its own location
	Rate float64   // torch blocks allocated in the last second, blocks/s
	Lost uint64    // events lost so far
	// NoTorch: no process has PyTorch's allocator. What the driver handed out is all that there is.
	NoTorch bool
}

// LiveLine is the state of a running job in one line, without a line end. Figures are sums over processes and devices; a
// sum of which one part is unknown is unknown. The peak is left out when there are several, because theirs are of
// different moments.
func LiveLine(b *heap.Totals, l Live) string {
	var other uint64
	peak := ""
	if len(b.Accounts) == 1 {
		peak = fmt.Sprintf(" (peak %s)", Bytes(b.Accounts[0].Peak))
	}
	for i := range b.Drivers {
		if d := &b.Drivers[i]; d.Layer == event.LayerDevice {
			other += d.Live.Bytes - d.Segments.Bytes
		}
	}
	asleep := uint64(0)
	for i := range b.Asleep {
		asleep += b.Asleep[i].Segments
	}
	if l.NoTorch && len(b.Accounts) == 0 {
		return fmt.Sprintf("%s  device memory %s  lost %s", l.Now.Format(time.TimeOnly), Bytes(other), Plural(l.Lost, "event"))
	}
	torch := Allocators(b.Accounts, peak)
	if asleep > 0 {
		torch += fmt.Sprintf(" (%s asleep)", Bytes(asleep))
	}
	return fmt.Sprintf("%s  %s  other device %s  %.0f blocks/s  lost %s", l.Now.Format(time.TimeOnly),
		torch, Bytes(other), l.Rate, Plural(l.Lost, "event"))
}

// Allocators states the memory of the caching allocators: their totals, or what was seen since the attach if they report none. peak follows
// the first figure; empty: it is not shown.
func Allocators(accounts []heap.Account, peak string) string {
	var out []string
	if allocated, reserved, ok := Reported(accounts); ok || len(accounts) == 0 {
		out = append(out, fmt.Sprintf("torch %s%s  reserved %s", Bytes(allocated), peak, Bytes(reserved)))
		peak = ""
	}
	for _, a := range unreported(accounts) {
		about, since := "", " since attach"
		switch {
		case a.Sampled():
			about = "about "
		case a.whole:
			since = ""
		}
		out = append(out, fmt.Sprintf("%s %s%s%s%s", a, about, Bytes(a.bytes), since, peak))
		peak = ""
	}
	return strings.Join(out, "  ")
}

// Reported sums the totals of the allocators that report them, bytes; event.Unknown if one is not known. ok false: no allocator reports
// any, and both are unknown.
func Reported(accounts []heap.Account) (allocated, reserved uint64, ok bool) {
	for i := range accounts {
		if a := &accounts[i]; a.Device.Allocator().Totals() {
			allocated, reserved, ok = plus(allocated, a.Allocated), plus(reserved, a.Reserved), true
		}
	}
	if !ok {
		return event.Unknown, event.Unknown, false
	}
	return allocated, reserved, true
}

// silentMemory is the memory in use of an allocator that reports no totals.
type silentMemory struct {
	allocator.Allocator
	bytes uint64
	whole bool // the bytes include what was allocated before the attach, because the allocator's state was read
}

// unreported sums the bytes of each allocator that reports no totals.
func unreported(accounts []heap.Account) []silentMemory {
	var out []silentMemory
	for i := range accounts {
		a := &accounts[i]
		allocator, whole, bytes := a.Device.Allocator(), a.Allocated != event.Unknown, a.Live.Bytes
		if allocator.Totals() {
			continue
		}
		if whole {
			bytes = a.Allocated
		}
		k := slices.IndexFunc(out, func(o silentMemory) bool { return o.Allocator == allocator })
		if k < 0 {
			out = append(out, silentMemory{allocator, bytes, whole})
			continue
		}
		out[k].bytes, out[k].whole = out[k].bytes+bytes, out[k].whole && whole
	}
	slices.SortFunc(out, func(x, y silentMemory) int { return cmp.Compare(x.Allocator, y.Allocator) })
	return out
}

func plus(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x + y
}
