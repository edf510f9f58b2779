// SPDX-License-Identifier: Apache-2.0

// Package ranks compares the processes of a job: what each has by category, how far they are apart, which grew first, and which ranks are
// missing.
package ranks

import (
	"cmp"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Process is what is known of one process.
type Process struct {
	Name  string // "rank 0, pid 5021"
	File  string
	Rank  int // -1: not known
	World int // how many ranks there are by its environment; 0: not known
	PID   int
	// Peak is what PyTorch had allocated at the peak of each device, together, and Categories what of it was for what, bytes.
	Peak       int64
	Categories map[string]int64
	Live       int64 // allocated at the end
	// Leaks is the verdict on its steps, and Grew when the step began with which the first of its findings did; zero: nothing grew, or the
	// time is not known.
	Leaks *leaks.Report
	Grew  time.Time
	// Devices are those that the process has used, in the order in which it began to.
	Devices []DeviceUse
}

// DeviceUse is how a process came to use a device.
type DeviceUse struct {
	Device int    // as the program numbers it
	Site   string // where the context was made, or the first memory was allocated on it
	Peak   int64  // device memory by calls that were seen, at the peak, bytes
}

// own is the device that a process uses most; ok is false when it uses none.
func (p *Process) own() (device int, ok bool) {
	most := int64(-1)
	for _, d := range p.Devices {
		if d.Peak > most {
			device, most = d.Device, d.Peak
		}
	}
	return device, most >= 0
}

// Guests are processes that use a device beside their own one, which is another process's, and opened it at one line.
type Guests struct {
	DeviceUse       // Peak is the most of one of them
	Owner     int   // index of a process whose own device it is
	Processes []int // indices
}

// Skew is how far the processes are apart in a category at their peaks.
type Skew struct {
	Category    string
	Most, Least int // indices of processes
	Bytes       int64
}

// Total is the category of all memory.
const Total = "total"

// Table is the processes of a job beside each other.
type Table struct {
	Processes  []Process // by rank, then by PID
	Categories []string  // that a process has anything of, the most first
	Skews      []Skew    // of Total and of each category, the largest first
	Missing    []int     // ranks of the job of which there is no process; nil: none, or it is not known how many there are
	World      int       // 0: not known
	// Growing are processes that grow, as indices, in the order in which they began to.
	Growing []int
	// Guests are in the order of the processes. Processes that see one device each, by CUDA_VISIBLE_DEVICES, are no guests of each other.
	Guests []Guests
}

// New puts processes beside each other.
func New(all []Process) *Table {
	t := &Table{Processes: slices.Clone(all)}
	sorts.Func(t.Processes, func(x, y Process) int {
		return cmp.Or(cmp.Compare(uint(x.Rank), uint(y.Rank)), cmp.Compare(x.PID, y.PID))
	})
	sums := map[string]int64{}
	for i := range t.Processes {
		for c, n := range t.Processes[i].Categories {
			sums[c] += n
		}
		t.World = max(t.World, t.Processes[i].World)
	}
	for c, n := range sums {
		if n != 0 {
			t.Categories = append(t.Categories, c)
		}
	}
	sorts.Func(t.Categories, func(x, y string) int { return cmp.Or(cmp.Compare(sums[y], sums[x]), cmp.Compare(x, y)) })
	t.skews()
	t.missing()
	t.grew()
	t.guests()
	return t
}

// guests finds the processes that use a device of another one beside their own.
func (t *Table) guests() {
	owner := map[int]int{}
	for i := range t.Processes {
		if d, ok := t.Processes[i].own(); ok {
			if _, taken := owner[d]; !taken {
				owner[d] = i
			}
		}
	}
	for i := range t.Processes {
		own, _ := t.Processes[i].own()
		for _, d := range t.Processes[i].Devices {
			if by, ok := owner[d.Device]; ok && d.Device != own && by != i {
				t.guest(i, by, d)
			}
		}
	}
}

// guest notes a guest.
func (t *Table) guest(process, owner int, d DeviceUse) {
	at := slices.IndexFunc(t.Guests, func(g Guests) bool { return g.Device == d.Device && g.Site == d.Site })
	if at < 0 {
		at = len(t.Guests)
		t.Guests = append(t.Guests, Guests{DeviceUse: d, Owner: owner})
	}
	g := &t.Guests[at]
	g.Processes, g.Peak = append(g.Processes, process), max(g.Peak, d.Peak)
}

// skews compares the processes that have a rank: a launcher has nothing to compare.
func (t *Table) skews() {
	for _, c := range append([]string{Total}, t.Categories...) {
		s := Skew{Category: c, Most: -1, Least: -1}
		for i := range t.Processes {
			p := &t.Processes[i]
			if p.Rank < 0 && t.World > 0 {
				continue
			}
			if s.Most < 0 || p.of(c) > t.Processes[s.Most].of(c) {
				s.Most = i
			}
			if s.Least < 0 || p.of(c) < t.Processes[s.Least].of(c) {
				s.Least = i
			}
		}
		if s.Most >= 0 {
			s.Bytes = t.Processes[s.Most].of(c) - t.Processes[s.Least].of(c)
			t.Skews = append(t.Skews, s)
		}
	}
	slices.SortStableFunc(t.Skews, func(x, y Skew) int { return cmp.Compare(y.Bytes, x.Bytes) })
}

// of is what a process has of a category at its peak.
func (p *Process) of(category string) int64 {
	if category == Total {
		return p.Peak
	}
	return p.Categories[category]
}

// maxMissing is how many missing ranks are listed.
const maxMissing = 1 << 16

func (t *Table) missing() {
	seen := map[int]bool{}
	for i := range t.Processes {
		seen[t.Processes[i].Rank] = true
	}
	for rank := range min(t.World, maxMissing) {
		if !seen[rank] {
			t.Missing = append(t.Missing, rank)
		}
	}
}

// grew orders what grows by time.
func (t *Table) grew() {
	for i := range t.Processes {
		if r := t.Processes[i].Leaks; r != nil && len(r.Findings) > 0 {
			t.Growing = append(t.Growing, i)
		}
	}
	slices.SortStableFunc(t.Growing, func(x, y int) int {
		a, b := t.Processes[x].Grew, t.Processes[y].Grew
		switch {
		case a.IsZero() != b.IsZero():
			return cmp.Compare(boolNumber(a.IsZero()), boolNumber(b.IsZero()))
		}
		return a.Compare(b)
	})
}

func boolNumber(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Lead is how much earlier than the second the first began to grow. ok is false when fewer than two grow, or a time is not known.
func (t *Table) Lead() (lead time.Duration, ok bool) {
	if len(t.Growing) < 2 {
		return 0, false
	}
	first, second := t.Processes[t.Growing[0]].Grew, t.Processes[t.Growing[1]].Grew
	return second.Sub(first), !first.IsZero() && !second.IsZero()
}
