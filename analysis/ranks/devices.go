// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// DevicesOf are the devices that the process of a trace used, in the order in which it began to. The trace is replayed once.
func DevicesOf(t *view.Trace) ([]DeviceUse, error) {
	var out []DeviceUse
	err := t.Replay(&view.Visitor{Event: func(e *event.Event, h *heap.Heap) {
		if e.Kind != event.KindAlloc || e.Device.Index < 0 || e.Layer == event.LayerHost || e.Object == event.ObjectPool {
			return
		}
		at := slices.IndexFunc(out, func(d DeviceUse) bool { return d.Device == int(e.Device.Index) })
		if at < 0 {
			at = len(out)
			out = append(out, DeviceUse{
				Device: int(e.Device.Index), Site: t.SiteName(&heap.Block{PID: e.PID, Layer: event.LayerDevice, Device: e.Device, Stack: e.Stack}),
			})
		}
		if d, ok := h.Driver(e.PID, event.LayerDevice, e.Device); ok {
			out[at].Peak = max(out[at].Peak, int64(d.Live.Bytes))
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("find the devices: %w", err)
	}
	return out, nil
}
