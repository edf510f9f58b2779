// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/process"
)

// Allocators are the allocators of a process that can be read without a probe: PyTorch's, and TensorFlow's and JAX's. They are not safe
// for concurrent use.
type Allocators struct {
	torch  *inspect.Allocator // nil: PyTorch has none
	pools  *bfc.Found         // nil: none were found
	failed error              // why TensorFlow's and JAX's were not found beside PyTorch's; nil: there was no reason
	unread []string           // why the last reading left out an allocator
}

// FindAllocators searches the memory of a process for its allocators. If it has none, the error is the one of inspect.Find or, if it has
// loaded TensorFlow or JAX, of bfc.Find.
func FindAllocators(ctx context.Context, p *process.Process) (*Allocators, error) {
	torch, err := inspect.Find(p)
	if err != nil && !errors.Is(err, inspect.ErrNoAllocator) && !errors.Is(err, inspect.ErrOtherBackend) {
		return nil, err
	}
	pools, poolsErr := bfc.Find(ctx, p, bootTime)
	switch {
	case poolsErr == nil:
		return &Allocators{torch: torch, pools: pools}, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == nil:
		a := &Allocators{torch: torch}
		if !errors.Is(poolsErr, bfc.ErrNoAllocator) {
			a.failed = poolsErr
		}
		return a, nil
	case errors.Is(poolsErr, bfc.ErrNotLoaded):
		return nil, err
	}
	return nil, poolsErr
}

// BFC lists TensorFlow's and JAX's allocators, for the search for holders.
func (a *Allocators) BFC() []*bfc.Pool {
	if a.pools == nil {
		return nil
	}
	return a.pools.Pools
}

// Notes are sentences, without a full stop, about allocators that are missing in what was read.
func (a *Allocators) Notes() []string {
	if a.failed != nil {
		return []string{fmt.Sprintf("allocators of TensorFlow and JAX are not shown: %v", a.failed)}
	}
	if a.pools == nil {
		return nil
	}
	out := append([]string(nil), a.unread...)
	for _, name := range a.pools.Unproved {
		out = append(out, fmt.Sprintf("%s is not shown: it has taken no memory yet, or this build of its framework is not known", name))
	}
	if a.pools.Cut {
		out = append(out, "not all memory of the process was searched for allocators: some may be missing")
	}
	return out
}

// MapNow reads the segments and blocks of all allocators.
func (a *Allocators) MapNow(ctx context.Context, timeout time.Duration) (*inspect.Map, error) {
	m := &inspect.Map{}
	if a.torch != nil {
		var err error
		if m, err = a.torch.MapNow(ctx, timeout); err != nil {
			return nil, err
		}
	}
	if a.pools == nil {
		return m, nil
	}
	a.unread = nil
	var last error
	for _, p := range a.pools.Pools {
		d, err := p.Map(ctx, bootTime, timeout)
		if err != nil {
			last = err
			a.unread = append(a.unread, fmt.Sprintf("%s is not shown: %v", p.Name, err))
			continue
		}
		m.Devices = append(m.Devices, *d)
	}
	if len(m.Devices) == 0 && last != nil {
		return nil, last
	}
	return m, nil
}

// MemoryStats reads PyTorch's statistics.
func (a *Allocators) MemoryStats(ctx context.Context) ([]inspect.MemoryStats, error) {
	if a.torch == nil {
		return nil, nil
	}
	return a.torch.MemoryStats(ctx)
}

// Limits reads the limits of PyTorch's allocator.
func (a *Allocators) Limits(ctx context.Context) ([][]uint64, error) {
	if a.torch == nil {
		return nil, nil
	}
	return a.torch.Limits(ctx)
}

// DeviceSizes reads the memory of each device from PyTorch.
func (a *Allocators) DeviceSizes(ctx context.Context) ([]uint64, error) {
	if a.torch == nil {
		return nil, nil
	}
	return a.torch.DeviceSizes(ctx)
}
