// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/inspect/internal/deviceobject"
)

// Limits reads what can be the program's own limit of each device, bytes of segments: what torch.cuda.set_per_process_memory_fraction and
// per_process_memory_fraction of PYTORCH_ALLOC_CONF allow. If there is a limit it is among them; the others are words that only look like
// one. A request that was refused without asking the driver decides: the limit lies between what is reserved and what would have been.
// Errors are those of Totals.
func (a *Allocator) Limits(ctx context.Context) ([][]uint64, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	out := make([][]uint64, 0, len(devices))
	for i, d := range devices {
		s, err := a.stats(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("read the limit of device %d: %w", i, err)
		}
		_, size, err := readSizedStats(a.memory, d.stats)
		if err != nil {
			return nil, fmt.Errorf("read the limit of device %d: %w", i, err)
		}
		front := d.stats + size - d.addr
		out = append(out, deviceobject.Limits(readable(a.memory, d.addr+front, d.limit-front), s.current(statReservedBytes, 0)))
	}
	return out, nil
}

// DeviceSizes reads the memory of each device that the program can use, bytes; 0: not known. It needs neither NVML nor the device.
// Errors are those of Totals.
func (a *Allocator) DeviceSizes(ctx context.Context) ([]uint64, error) {
	devices, err := a.devices(ctx)
	if err != nil || len(devices) == 0 || len(a.sizes) == len(devices) {
		return a.sizes, err
	}
	objects := make([]deviceobject.Object, len(devices))
	for i, d := range devices {
		objects[i] = deviceobject.Object{Addr: d.addr, Limit: d.limit}
	}
	sizes := deviceobject.Sizes(a.memory, objects)
	if !slices.Contains(sizes, 0) { // else they are there later
		a.sizes = sizes
	}
	return sizes, nil
}
