// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"time"

	"github.com/gputrace/gputrace/event"
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
	var allocated, reserved, other uint64
	peak, seen, silent := "", uint64(0), len(b.Accounts) > 0
	for i := range b.Accounts {
		a := &b.Accounts[i]
		allocated, reserved = plus(allocated, a.Allocated), plus(reserved, a.Reserved)
		seen, silent = seen+a.Live.Bytes, silent && !a.Device.Allocator().Totals()
	}
	if len(b.Accounts) == 1 {
		peak = fmt.Sprintf(" (peak %s)", Bytes(b.Accounts[0].Peak))
	}
	if len(b.Accounts) == 0 {
		allocated, reserved = event.Unknown, event.Unknown
	}
	for i := range b.Drivers {
		if d := &b.Drivers[i]; d.Layer == event.LayerDevice {
			other += d.Live.Bytes - d.Segments.Bytes
		}
	}
	if l.NoTorch && len(b.Accounts) == 0 {
		return fmt.Sprintf("%s  device memory %s  lost %s", l.Now.Format(time.TimeOnly), Bytes(other), Plural(l.Lost, "event"))
	}
	if silent {
		return fmt.Sprintf("%s  %s %s since attach%s  other device %s  %.0f blocks/s  lost %s", l.Now.Format(time.TimeOnly),
			b.Accounts[0].Device.Allocator(), Bytes(seen), peak, Bytes(other), l.Rate, Plural(l.Lost, "event"))
	}
	return fmt.Sprintf("%s  torch %s%s  reserved %s  other device %s  %.0f blocks/s  lost %s", l.Now.Format(time.TimeOnly),
		Bytes(allocated), peak, Bytes(reserved), Bytes(other), l.Rate, Plural(l.Lost, "event"))
}

func plus(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x + y
}
