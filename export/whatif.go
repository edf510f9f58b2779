// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"

	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
)

// notReplayed names an allocator of a program if none of its allocators follows the rules of the replay; empty: one does.
func notReplayed(accounts []heap.Account) (other string) {
	for i := range accounts {
		d := accounts[i].Device
		switch {
		case d.Type.MPS():
			return "that for MPS"
		case d.Allocator().Simulated():
			return ""
		}
		other = d.Allocator().String()
	}
	return other
}

// WhatIf replays the requests of the source under other settings. A source without any is exit.Nothing.
func (s *Source) WhatIf(ask *whatif.Ask) ([]whatif.Report, error) {
	table, err := s.Steps()
	if err != nil {
		return nil, err
	}
	if other := notReplayed(s.Trace.End().Snapshot.Accounts); other != "" {
		const why = "replay: what is replayed is PyTorch's allocator for CUDA, and this program used"
		return nil, exit.With(exit.Nothing, fmt.Errorf("%s: %s %s", s.Path, why, other))
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
