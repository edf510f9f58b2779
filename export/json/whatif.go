// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
)

// whatIfVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const whatIfVersion = 1

type whatIfFile struct {
	Format  string         `json:"format"`
	Version int            `json:"version"`
	Devices []whatIfDevice `json:"devices"`
	Batches *whatIfBatches `json:"batches,omitempty"`
}

type whatIfDevice struct {
	PID      uint32      `json:"pid"`
	Device   string      `json:"device"`
	Requests uint64      `json:"requests"`
	Guessed  uint64      `json:"requests_of_unknown_size"`
	Lost     uint64      `json:"gaps"`
	Emptied  int         `json:"empty_cache_calls"`
	Before   uint64      `json:"reserved_before_bytes"`
	Peak     uint64      `json:"recorded_peak_reserved_bytes"`
	Outside  *uint64     `json:"outside_bytes"` // null: not known, 0 was assumed
	Check    whatIfCheck `json:"check"`
	Rows     []whatIfRow `json:"settings"`
}

type whatIfCheck struct {
	Compared uint64  `json:"compared"`
	Equal    uint64  `json:"equal"`
	FirstAt  *uint64 `json:"first_difference_boottime_ns"`
}

type whatIfRow struct {
	Conf     string         `json:"conf"`
	Device   *uint64        `json:"device_bytes"` // null: without an end
	Fraction *float64       `json:"fraction"`
	Peak     uint64         `json:"peak_reserved_bytes"`
	PeakAt   uint64         `json:"peak_boottime_ns"`
	HeadRoom *uint64        `json:"head_room_bytes"`
	Retries  int            `json:"retries"`
	Failed   *whatIfFailure `json:"failed"` // null: nothing
	Past     *whatIfFailure `json:"would_not_have_failed"`
}

type whatIfFailure struct {
	Step      *int    `json:"step"`
	Site      *string `json:"site"`
	Phase     string  `json:"phase,omitempty"`
	Time      uint64  `json:"boottime_ns"`
	Requested uint64  `json:"requested_bytes"`
	Block     uint64  `json:"block_bytes"`
	Reserved  uint64  `json:"reserved_bytes"`
	Allocated uint64  `json:"allocated_bytes"`
	Free      *uint64 `json:"device_free_bytes"`
}

// whatIfBatches is the largest batch, as whatif.Batches.
type whatIfBatches struct {
	Slope     float64  `json:"bytes_per_sample"`
	Intercept float64  `json:"bytes_without"`
	Residual  float64  `json:"largest_residual_bytes"`
	Points    int      `json:"recordings"`
	Largest   *float64 `json:"largest_batch"`          // null: the device is not known, or the need does not grow
	Fails     *float64 `json:"smallest_failing_batch"` // the same
	Replayed  bool     `json:"replayed"`
}

// WriteWhatIf writes what replays came to. batches nil: one recording.
func WriteWhatIf(w io.Writer, reports []whatif.Report, batches *whatif.Batches) error {
	out := whatIfFile{Format: "gputrace whatif", Version: whatIfVersion, Devices: []whatIfDevice{}}
	for i := range reports {
		out.Devices = append(out.Devices, whatIfOf(&reports[i]))
	}
	if batches != nil {
		out.Batches = &whatIfBatches{Slope: batches.Slope, Intercept: batches.Intercept, Residual: batches.Residual, Points: batches.Points,
			Replayed: batches.Replayed}
		if batches.Known {
			out.Batches.Largest, out.Batches.Fails = &batches.Largest, &batches.Fails
		}
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func whatIfOf(r *whatif.Report) whatIfDevice {
	d := whatIfDevice{
		PID: r.PID, Device: r.Device.String(), Requests: r.Allocs, Guessed: r.Guessed, Lost: r.Lost, Emptied: r.Emptied, Before: r.Before,
		Peak: r.Peak, Check: whatIfCheck{Compared: r.Check.Compared, Equal: r.Check.Equal},
	}
	if !r.OutsideUnknown {
		d.Outside = &r.Outside
	}
	if r.Check.FirstAt != 0 {
		d.Check.FirstAt = &r.Check.FirstAt
	}
	for i := range r.Rows {
		d.Rows = append(d.Rows, whatIfRowOf(&r.Rows[i]))
	}
	return d
}

func whatIfRowOf(r *whatif.Row) whatIfRow {
	out := whatIfRow{Conf: r.Conf(), Peak: r.Peak, PeakAt: r.PeakAt, HeadRoom: knownBytes(r.HeadRoom), Retries: r.Retries}
	if r.Settings.Device > 0 {
		out.Device = &r.Settings.Device
	}
	if r.Fraction > 0 {
		out.Fraction = &r.Fraction
	}
	if f := r.Failed; f != nil {
		out.Failed = failureOf(f)
		out.Failed.Phase = string(r.Phase)
		if out.Failed.Site = &r.Site; r.Step > 0 {
			out.Failed.Step = &r.Step
		}
	}
	if r.Past != nil {
		out.Past = failureOf(r.Past)
	}
	return out
}

func failureOf(f *whatif.Failure) *whatIfFailure {
	return &whatIfFailure{Time: f.Time, Requested: f.Requested, Block: f.Size, Reserved: f.Reserved, Allocated: f.Allocated,
		Free: knownBytes(f.Free)}
}

func knownBytes(n uint64) *uint64 {
	if n == event.Unknown {
		return nil
	}
	return &n
}
