// SPDX-License-Identifier: Apache-2.0

//go:build linux

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event/figures"
)

// dumpVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const dumpVersion = 2

// Dump is what WriteDump writes.
type Dump struct {
	State   *allocator.State
	PID     int
	Command []string  // the command line; empty: not known
	Paused  string    // why the process does not run; empty: it does
	Boot    time.Time // when CLOCK_BOOTTIME was 0
	// Balance has the driver's figures; nil: it was not asked.
	Balance *balance.Process
	// Holders name the blocks; nil: they are not known, for the reason that HoldersWhy says, or were not asked for.
	Holders    *holders.Index
	HoldersWhy string
	Notes      []string // about what is missing
}

type dumpFile struct {
	Format  string       `json:"format"`
	Version int          `json:"version"`
	PID     int          `json:"pid"`
	Command []string     `json:"command,omitempty"`
	Paused  string       `json:"paused,omitempty"`
	Devices []dumpDevice `json:"devices"`
	// Unplaced are the driver's figures that belong to none of the devices.
	Unplaced  []dumpDriver `json:"unplaced,omitempty"`
	DriverWhy string       `json:"driver_why,omitempty"`
	// HoldersWhy says why no block has a holder.
	HoldersWhy string   `json:"holders_why,omitempty"`
	Moved      bool     `json:"moved,omitempty"`
	Notes      []string `json:"notes,omitempty"`
}

type dumpDevice struct {
	Device         int                  `json:"device"`
	Allocator      string               `json:"allocator,omitempty"` // PyTorch's
	Name           string               `json:"name,omitempty"`      // of the allocator, if it is BFC
	Host           bool                 `json:"host,omitempty"`
	Time           time.Time            `json:"time"`
	BootTime       uint64               `json:"boottime_ns"`
	Memory         dumpMemory           `json:"memory"`
	Counted        dumpCounted          `json:"counted"`
	Unexplained    int64                `json:"unexplained"`
	Changing       *dumpChanging        `json:"changing,omitempty"` // nothing changed
	Driver         *dumpDriver          `json:"driver,omitempty"`
	BesideTorch    *int64               `json:"beside_torch,omitempty"`
	BesideBFC      *int64               `json:"beside_bfc,omitempty"`
	Pools          []dumpPool           `json:"pools"`
	InactiveSplits []dumpInactiveSplits `json:"inactive_splits"`
	Segments       []dumpSegment        `json:"segments"`
}

type dumpMemory struct {
	Reserved             uint64  `json:"reserved"`
	Allocated            uint64  `json:"allocated"`
	Requested            *uint64 `json:"requested,omitempty"`
	Rounding             *uint64 `json:"rounding,omitempty"`
	Pending              uint64  `json:"pending"`
	InactiveSplit        uint64  `json:"inactive_split"`
	Free                 uint64  `json:"free"`
	LargestInactiveSplit uint64  `json:"largest_inactive_split"`
	SegmentCount         uint64  `json:"segment_count"`
	FreeSegmentCount     uint64  `json:"free_segment_count"`
	AllocatedCount       uint64  `json:"allocated_count"`
	PendingCount         uint64  `json:"pending_count"`
	InactiveSplitCount   uint64  `json:"inactive_split_count"`
}

type dumpCounted struct {
	Allocated uint64 `json:"allocated"`
	Reserved  uint64 `json:"reserved"`
	Active    uint64 `json:"active"`
}

// dumpChanging is what did not stand still while it was read.
type dumpChanging struct {
	Blocks     uint64 `json:"blocks"`
	BlocksHigh uint64 `json:"blocks_high"`
	Low        uint64 `json:"bytes_low"`
	High       uint64 `json:"bytes_high"`
	Ranges     int    `json:"ranges"`
	RangeBytes uint64 `json:"range_bytes"`
}

func newDumpChanging(c *allocator.ChangingBlocks) *dumpChanging {
	if c == nil {
		return nil
	}
	return &dumpChanging{
		Blocks: c.BlocksLow, BlocksHigh: c.BlocksHigh, Low: c.BytesLow, High: c.BytesHigh, Ranges: c.Ranges, RangeBytes: c.RangeBytes,
	}
}

// dumpPoolName names a pool.
type dumpPoolName struct {
	Kind string    `json:"kind"` // "large" or "small"
	ID   [2]uint64 `json:"id"`   // 0, 0: not private
}

type dumpPool struct {
	Pool   dumpPoolName `json:"pool"`
	Memory dumpMemory   `json:"memory"`
}

// dumpDriver is what the driver says. What it does not say is left out.
type dumpDriver struct {
	Used  *uint64 `json:"used,omitempty"`
	Why   string  `json:"why,omitempty"` // Used is not known
	Name  string  `json:"name,omitempty"`
	UUID  string  `json:"uuid,omitempty"`
	Total *uint64 `json:"total,omitempty"`
	All   *uint64 `json:"used_by_all,omitempty"`
}

type dumpInactiveSplits struct {
	Pool    dumpPoolName             `json:"pool"`
	Stream  uint64                   `json:"stream"`
	Count   uint64                   `json:"count"`
	Bytes   uint64                   `json:"bytes"`
	Largest uint64                   `json:"largest"`
	Classes []dumpInactiveSplitClass `json:"classes"`
}

type dumpInactiveSplitClass struct {
	From    uint64 `json:"from"`
	Below   uint64 `json:"below"`
	Count   uint64 `json:"count"`
	Bytes   uint64 `json:"bytes"`
	Largest uint64 `json:"largest"`
}

type dumpSegment struct {
	Address              uint64       `json:"address"`
	Size                 uint64       `json:"size"`
	Pool                 dumpPoolName `json:"pool"`
	Stream               uint64       `json:"stream"`
	Expandable           bool         `json:"expandable"`
	Allocated            uint64       `json:"allocated"`
	Requested            *uint64      `json:"requested,omitempty"`
	Pending              uint64       `json:"pending"`
	Free                 uint64       `json:"free"`
	Changing             uint64       `json:"changing,omitempty"`
	LargestInactiveSplit uint64       `json:"largest_inactive_split"`
	Blocks               []dumpBlock  `json:"blocks"`
}

type dumpBlock struct {
	Address   uint64  `json:"address"`
	Size      uint64  `json:"size"`
	Requested *uint64 `json:"requested,omitempty"` // a free block has none; nor have others where the allocator does not keep it
	Stream    uint64  `json:"stream"`
	ID        uint64  `json:"allocation_id,omitempty"`
	State     string  `json:"state"`
	// The holder, as in the output of gputrace who.
	Category string `json:"category,omitempty"`
	Holder   string `json:"holder,omitempty"`
}

// WriteDump writes the allocator's map and its figures as one JSON object on one line.
func WriteDump(w io.Writer, d Dump) error {
	f := dumpFile{Format: "gputrace dump", Version: dumpVersion, PID: d.PID, Command: d.Command, Paused: d.Paused, HoldersWhy: d.HoldersWhy,
		Notes:   d.Notes,
		Devices: []dumpDevice{}}
	for i := range d.State.Devices {
		f.Devices = append(f.Devices, newDumpDevice(&d.State.Devices[i], d.Boot))
	}
	if d.Balance != nil {
		f.addBalance(d.Balance)
	}
	if d.Holders != nil {
		f.addHolders(&d)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(&f); err != nil {
		return fmt.Errorf("write the map as JSON: %w", err)
	}
	return nil
}

func newDumpDevice(d *allocator.DeviceState, boot time.Time) dumpDevice {
	out := dumpDevice{
		Device: d.Counted.Device, Allocator: allocatorName(d.Allocator), Name: d.Name, Host: d.Host,
		Time: boot.Add(time.Duration(d.Time)).UTC(), BootTime: d.Time, Memory: newDumpMemory(&d.Memory),
		Counted: dumpCounted{d.Counted.Allocated, d.Counted.Reserved, d.Active}, Unexplained: d.Unexplained(),
		Changing: newDumpChanging(d.Changing),
		Pools:    make([]dumpPool, len(d.Pools)), InactiveSplits: []dumpInactiveSplits{}, Segments: make([]dumpSegment, len(d.Segments)),
	}
	for _, h := range d.InactiveByPool() {
		out.InactiveSplits = append(out.InactiveSplits, newDumpInactiveSplits(&h))
	}
	for i := range d.Pools {
		p := &d.Pools[i]
		out.Pools[i] = dumpPool{poolName(p.Pool.Small, p.Pool.ID), newDumpMemory(&p.Memory)}
	}
	for i := range d.Segments {
		out.Segments[i] = newDumpSegment(&d.Segments[i])
	}
	return out
}

// addBalance adds the driver's figures to the devices that they belong to.
func (f *dumpFile) addBalance(b *balance.Process) {
	f.DriverWhy, f.Moved = b.DriverWhy, b.Moved
	for i := range b.Unplaced {
		f.Unplaced = append(f.Unplaced, newDumpDriver(&b.Unplaced[i]))
	}
	for i := range b.Devices {
		d := &b.Devices[i]
		driver := newDumpDriver(&d.Driver)
		driver.Why = d.Why
		at := slices.IndexFunc(f.Devices, func(o dumpDevice) bool { return !o.Host && o.Device == int(d.Device.Index) })
		if at < 0 {
			f.Unplaced = append(f.Unplaced, driver)
			continue
		}
		f.Devices[at].Driver = &driver
		if rest, ok := d.Remainder(); ok && f.Devices[at].Name != "" {
			f.Devices[at].BesideBFC = &rest
		} else if ok {
			f.Devices[at].BesideTorch = &rest
		}
	}
}

func newDumpDriver(u *figures.DriverUse) dumpDriver {
	return dumpDriver{Used: known(uint64(u.Used)), Why: u.Why, Name: u.Name, UUID: u.UUID, Total: known(uint64(u.Total)),
		All: known(uint64(u.All))}
}

// addHolders adds what holds the blocks, as far as it was read of the same ones.
func (f *dumpFile) addHolders(d *Dump) {
	for i := range d.State.Devices {
		for j := range d.State.Devices[i].Segments {
			blocks := d.State.Devices[i].Segments[j].Blocks
			for k := range blocks {
				if n, ok := d.Holders.Find(&blocks[k]); ok {
					held, out := &d.Holders.Report.Blocks[n], &f.Devices[i].Segments[j].Blocks[k]
					out.Category, out.Holder = held.Category.String(), held.Name()
				}
			}
		}
	}
}

func newDumpInactiveSplits(h *allocator.InactiveSplits) dumpInactiveSplits {
	out := dumpInactiveSplits{Pool: poolName(h.Pool.Small, h.Pool.ID), Stream: h.Stream, Count: h.Count, Bytes: h.Bytes, Largest: h.Largest}
	for _, c := range h.Classes {
		out.Classes = append(out.Classes, dumpInactiveSplitClass(c))
	}
	return out
}

func poolName(small bool, id [2]uint64) dumpPoolName {
	if small {
		return dumpPoolName{"small", id}
	}
	return dumpPoolName{"large", id}
}

func newDumpMemory(m *allocator.Memory) dumpMemory {
	return dumpMemory{
		Reserved: m.Reserved, Allocated: m.Allocated, Requested: known(m.Requested), Rounding: known(m.Rounding()), Pending: m.Pending,
		InactiveSplit: m.InactiveSplit, Free: m.Free, LargestInactiveSplit: m.LargestInactiveSplit, SegmentCount: m.SegmentCount,
		FreeSegmentCount: m.FreeSegmentCount,
		AllocatedCount:   m.AllocatedCount, PendingCount: m.PendingCount, InactiveSplitCount: m.InactiveSplitCount,
	}
}

func newDumpSegment(s *allocator.SegmentState) dumpSegment {
	out := dumpSegment{
		Address: s.Addr, Size: s.Size, Pool: poolName(s.Pool.Small, s.Pool.ID), Stream: s.Stream, Expandable: s.Expandable,
		Allocated: s.Allocated, Requested: known(s.Requested), Pending: s.Pending, Free: s.FreeBytes(),
		Changing: s.Changing, LargestInactiveSplit: s.LargestInactiveSplit,
		Blocks: make([]dumpBlock, len(s.Blocks)),
	}
	for i := range s.Blocks {
		b := &s.Blocks[i]
		out.Blocks[i] = dumpBlock{Address: b.Addr, Size: b.Size, Stream: b.Stream, ID: b.ID, State: b.State.String()}
		if allocator.Held(b) {
			out.Blocks[i].Requested = known(b.Requested)
		}
	}
	return out
}
