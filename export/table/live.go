// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"maps"
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
	if l.NoTorch && len(b.Accounts) == 0 {
		return fmt.Sprintf("%s  device memory %s  lost %s", l.Now.Format(time.TimeOnly), Bytes(other), Plural(l.Lost, "event"))
	}
	return fmt.Sprintf("%s  %s  other device %s  %.0f blocks/s  lost %s", l.Now.Format(time.TimeOnly),
		Allocators(b.Accounts, peak), Bytes(other), l.Rate, Plural(l.Lost, "event"))
}

// Allocators states the memory of the caching allocators: their totals, or what was seen since the attach if they report none. peak follows
// the first figure; empty: it is not shown.
func Allocators(accounts []heap.Account, peak string) string {
	var out []string
	if allocated, reserved, ok := Reported(accounts); ok || len(accounts) == 0 {
		out = append(out, fmt.Sprintf("torch %s%s  reserved %s", Bytes(allocated), peak, Bytes(reserved)))
		peak = ""
	}
	seen, silent := Unreported(accounts)
	for _, a := range silent {
		about := ""
		if a.Sampled() {
			about = "about "
		}
		out = append(out, fmt.Sprintf("%s %s%s since attach%s", a, about, Bytes(seen[a]), peak))
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

// Unreported sums the bytes in use, since the attach, of each allocator that reports no totals, and lists these allocators.
func Unreported(accounts []heap.Account) (seen map[allocator.Allocator]uint64, silent []allocator.Allocator) {
	seen = map[allocator.Allocator]uint64{}
	for i := range accounts {
		if a := accounts[i].Device.Allocator(); !a.Totals() {
			seen[a] += accounts[i].Live.Bytes
		}
	}
	return seen, slices.Sorted(maps.Keys(seen))
}

func plus(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x + y
}
