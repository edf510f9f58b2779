// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/whatif"
)

// fragmentsVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const fragmentsVersion = 1

// FragmentsInput is what WriteFragments writes. Text is the sentence on a device.
type FragmentsInput struct {
	Devices []whatif.Fragmentation
	Churn   *fragments.Churn
	Text    func(*whatif.Fragmentation) string
}

type fragmentsFile struct {
	Format  string            `json:"format"`
	Version int               `json:"version"`
	Devices []fragmentsDevice `json:"devices"`
	Churn   fragmentsChurn    `json:"churn"`
}

type fragmentsDevice struct {
	PID          uint32               `json:"pid"`
	Device       string               `json:"device"`
	Time         uint64               `json:"boottime_ns"`
	IsFragmented bool                 `json:"is_fragmented"`
	Text         string               `json:"text"`
	Request      *uint64              `json:"request_bytes"` // null: none
	Reserved     uint64               `json:"reserved"`
	Allocated    uint64               `json:"allocated"`
	Inactive     uint64               `json:"inactive_split"`
	Free         uint64               `json:"free_segments"`
	Fragmented   uint64               `json:"fragmented"`
	Largest      uint64               `json:"largest_free"`
	Unknown      uint64               `json:"in_no_known_segment"`
	Pools        []fragmentsPool      `json:"pools"`
	Pins         []fragmentsPin       `json:"pinned_by"`
	EmptyCache   fragmentsEmpty       `json:"empty_cache"`
	Workspaces   []fragmentsWorkspace `json:"workspaces"`
	Helps        []fragmentsHelp      `json:"helps"` // null: not known
}

type fragmentsPool struct {
	Small     bool    `json:"small"`
	Private   bool    `json:"private"`
	Stream    *uint64 `json:"stream"`
	OfRequest bool    `json:"of_request"`
	Reserved  uint64  `json:"reserved"`
	Inactive  uint64  `json:"inactive_split"`
	Pieces    uint64  `json:"pieces"`
	Free      uint64  `json:"free_segments"`
	Largest   uint64  `json:"largest_free"`
	Segments  uint64  `json:"segments"`
}

type fragmentsPin struct {
	Site     string  `json:"site"`
	Holder   *string `json:"holder"`
	Blocks   uint64  `json:"blocks"`
	Bytes    uint64  `json:"bytes"`
	Segments uint64  `json:"segments"`
	Inactive uint64  `json:"inactive_split"`
	Oldest   *uint64 `json:"oldest_boottime_ns"`
}

type fragmentsEmpty struct {
	Returnable uint64  `json:"would_return"`
	Calls      *int    `json:"calls"`
	Returned   *uint64 `json:"returned"`
	Regained   *uint64 `json:"obtained_again"`
}

type fragmentsWorkspace struct {
	Library string `json:"library"`
	Blocks  uint64 `json:"blocks"`
	Bytes   uint64 `json:"bytes"`
}

type fragmentsHelp struct {
	Conf         string `json:"conf"`
	Peak         uint64 `json:"peak_reserved_bytes"`
	RecordedPeak uint64 `json:"recorded_peak_reserved_bytes"`
	GoesOn       bool   `json:"no_request_fails"`
	Exact        bool   `json:"exact"`
}

type fragmentsChurn struct {
	Steps     int             `json:"steps"`
	PerStep   *float64        `json:"bytes_per_step"`
	Most      uint64          `json:"most_bytes"`
	MostAt    *int            `json:"most_step"`
	Bytes     uint64          `json:"bytes"`
	Blocks    uint64          `json:"blocks"`
	Allocated uint64          `json:"allocated_bytes"`
	Sites     []fragmentsSite `json:"sites"`
}

type fragmentsSite struct {
	Site   string `json:"site"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// WriteFragments writes how fragmented the caching allocators are.
func WriteFragments(w io.Writer, in *FragmentsInput) error {
	out := fragmentsFile{Format: "gputrace fragments", Version: fragmentsVersion, Devices: []fragmentsDevice{}, Churn: churnOf(in.Churn)}
	for i := range in.Devices {
		out.Devices = append(out.Devices, fragmentsOf(&in.Devices[i], in.Text))
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func fragmentsOf(f *whatif.Fragmentation, text func(*whatif.Fragmentation) string) fragmentsDevice {
	d := fragmentsDevice{
		PID: f.PID, Device: f.Device.String(), Time: f.Time, IsFragmented: f.IsFragmented(), Text: text(f), Reserved: f.Reserved,
		Allocated: f.Held,
		Inactive:  f.Inactive, Free: f.Free, Fragmented: f.Fragmented, Largest: f.Largest, Unknown: f.Unknown,
		EmptyCache: fragmentsEmpty{Returnable: f.Returnable}, Pools: []fragmentsPool{}, Pins: []fragmentsPin{},
		Workspaces: []fragmentsWorkspace{},
	}
	if f.Request.Bytes > 0 {
		d.Request = &f.Request.Bytes
	}
	for i := range f.Pools {
		p := &f.Pools[i]
		d.Pools = append(d.Pools, fragmentsPool{
			Small: p.Small, Private: p.IsPrivate(), Stream: knownBytes(p.Stream), OfRequest: p.OfRequest, Reserved: p.Reserved, Inactive: p.Inactive,
			Pieces: p.InactiveCount, Free: p.Free, Largest: p.Largest, Segments: p.Segments,
		})
	}
	for i := range f.Pins {
		d.Pins = append(d.Pins, pinOf(&f.Pins[i]))
	}
	for _, w := range f.Workspaces {
		d.Workspaces = append(d.Workspaces, fragmentsWorkspace(w))
	}
	d.replays(f.Replays)
	return d
}

func pinOf(p *fragments.Pin) fragmentsPin {
	out := fragmentsPin{Site: p.Site, Blocks: p.Blocks, Bytes: p.Bytes, Segments: p.Segments, Inactive: p.Stranded}
	if p.Holder != "" {
		out.Holder = &p.Holder
	}
	if p.Oldest != 0 {
		out.Oldest = &p.Oldest
	}
	return out
}

// replays sets what needs a replay of the requests.
func (d *fragmentsDevice) replays(r *whatif.Report) {
	if r == nil {
		return
	}
	d.EmptyCache.Calls, d.EmptyCache.Returned, d.EmptyCache.Regained = &r.Emptied, &r.Returned, &r.Regained
	d.Helps = []fragmentsHelp{}
	for _, h := range r.Helps() {
		d.Helps = append(d.Helps, fragmentsHelp{Conf: h.Conf(), Peak: h.Peak, RecordedPeak: r.Rows[0].Peak, GoesOn: h.GoesOn,
			Exact: r.Check.Exact()})
	}
}

func churnOf(c *fragments.Churn) fragmentsChurn {
	out := fragmentsChurn{Steps: c.Steps, Most: c.Most, Bytes: c.Bytes, Blocks: c.Blocks, Allocated: c.Allocated, Sites: []fragmentsSite{}}
	if !math.IsNaN(c.PerStep) {
		out.PerStep = &c.PerStep
	}
	if c.MostAt > 0 {
		out.MostAt = &c.MostAt
	}
	for _, s := range c.Sites {
		out.Sites = append(out.Sites, fragmentsSite(s))
	}
	return out
}
