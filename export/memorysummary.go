// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/summary"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/memorysummary"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
)

// MemoryStats is what PyTorch's caching allocator counts, as of the end of the source: by its own statistics where they were read then,
// else as far as the events tell.
func (s *Source) MemoryStats() (*summary.Report, error) {
	table, err := s.Steps()
	if err != nil {
		return nil, err
	}
	r, err := summary.Of(s.Trace, table)
	if err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	if accounts := s.Trace.End().Snapshot.Accounts; len(r.Devices) == 0 && len(accounts) > 0 {
		return nil, exit.With(exit.Nothing, fmt.Errorf("%s: what summary counts are PyTorch's statistics, and this is memory of %s", s.Path,
			accounts[0].Device.Allocator()))
	}
	if s.End == nil || s.End.Memory == nil {
		return r, nil
	}
	for i := range r.Devices {
		for k := range s.End.Memory.Stats {
			if read := &s.End.Memory.Stats[k]; sameEnd(&r.Devices[i], read) {
				r.Devices[i] = *read
			}
		}
	}
	return r, nil
}

// sameEnd reports whether statistics that were read are those of the last event.
func sameEnd(events, read *figures.MemoryStats) bool {
	x, y := &events.Stats[figures.StatAllocatedBytes].All, &read.Stats[figures.StatAllocatedBytes].All
	reserved, other := &events.Stats[figures.StatReservedBytes].All, &read.Stats[figures.StatReservedBytes].All
	return events.Device == read.Device && x.Current == y.Current && reserved.Current == other.Current
}

// WriteMemoryStats writes statistics as torch.cuda.memory_summary() does, or as JSON. lines is the end of a
// recording, for a table of what is in use by line; nil: it is not known.
func WriteMemoryStats(w io.Writer, r *summary.Report, lines *view.View, asJSON bool) error {
	if asJSON {
		return json.WriteSummary(w, r)
	}
	for i := range r.Devices {
		if err := memorysummary.Write(w, &r.Devices[i]); err != nil {
			return err
		}
		if lines == nil {
			continue
		}
		if err := table.Selection(w, table.SelectionInput{View: onDevice(lines, r.Devices[i].Device), Title: "at the end",
			By: view.ByLine}); err != nil {
			return err
		}
	}
	return nil
}

// onDevice returns the part of a view that belongs to the caching allocator of one device.
func onDevice(v *view.View, device int) *view.View {
	out := *v
	s := *v.Snapshot
	s.Accounts, out.Sites = nil, nil
	for _, a := range v.Snapshot.Accounts {
		if int(a.Device.Index) == device {
			s.Accounts = append(s.Accounts, a)
		}
	}
	for i := range v.Sites {
		if site := &v.Sites[i]; isOf(site, s.Accounts) {
			out.Sites = append(out.Sites, *site)
		}
	}
	out.Snapshot = &s
	return &out
}

// isOf reports whether a site is of PyTorch's memory of one of the accounts.
func isOf(s *view.Site, accounts []heap.Account) bool {
	for i := range accounts {
		if a := &accounts[i]; a.PID == s.PID && a.Device == s.Device {
			return s.Layer == event.LayerAllocator
		}
	}
	return false
}
