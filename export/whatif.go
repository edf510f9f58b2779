// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
)

// errOtherAllocator is of requests to PyTorch's MPS allocator, which places blocks by other rules.
var errOtherAllocator = errors.New("replay: what is replayed is PyTorch's allocator for CUDA, and this program used that for MPS")

// WhatIf replays the requests of the source under other settings. A source without any is exit.Nothing.
func (s *Source) WhatIf(ask *whatif.Ask) ([]whatif.Report, error) {
	table, err := s.Steps()
	if err != nil {
		return nil, err
	}
	accounts := s.Trace.End().Snapshot.Accounts
	if slices.ContainsFunc(accounts, func(a heap.Account) bool { return a.Device.Type.MPS() }) {
		return nil, exit.With(exit.Nothing, fmt.Errorf("%s: %w", s.Path, errOtherAllocator))
	}
	if i := slices.IndexFunc(accounts, func(a heap.Account) bool { return !a.Device.Allocator().Simulated() }); i >= 0 {
		return nil, exit.With(exit.Nothing, fmt.Errorf("%s: what is replayed is PyTorch's allocator for CUDA, and this program used %s", s.Path, accounts[i].Device.Allocator()))
	}
	asked := *ask
	asked.PyTorch = s.Info.PyTorch
	reports, err := whatif.Find(s.Trace, table, &asked, s.deviceOf)
	switch {
	case errors.Is(err, whatif.ErrNoStream):
		return nil, exit.With(exit.Nothing, fmt.Errorf("%s: %w", s.Path, err))
	case err != nil:
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return reports, nil
}

// deviceOf is what the recording says of a device at its end: what is neither of the caching allocator nor of calls that were seen is used
// by the context and other processes.
func (s *Source) deviceOf(_ uint32, d event.Device, stream *whatif.Stream) whatif.Known {
	out := whatif.Known{Outside: event.Unknown}
	if s.End == nil || s.End.Memory == nil {
		return out
	}
	for _, use := range s.End.Memory.Driver {
		if use.Device != int(d.Index) || uint64(use.Total) == event.Unknown {
			continue
		}
		out.Total = uint64(use.Total)
		reserved, seen := stream.Last()
		if all := uint64(use.All); all != event.Unknown && reserved != event.Unknown && all >= reserved+seen {
			out.Outside = all - reserved - seen
		}
	}
	return out
}
