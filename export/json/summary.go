// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/summary"
	"github.com/gputrace/gputrace/event/figures"
)

// summaryVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const summaryVersion = 1

type summaryFile struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	Devices []summaryDevice `json:"devices"`
}

// summaryDevice has only what is known exactly: a key that is missing is not 0.
type summaryDevice struct {
	Device       int                `json:"device"`
	Stats        map[string]uint64  `json:"memory_stats"`
	Transformers map[string]int64   `json:"transformers,omitempty"`
	Lightning    map[string]uint64  `json:"lightning"`
	Composer     map[string]float64 `json:"composer"`
}

// lightningHook is the moment of Lightning's DeviceStatsMonitor whose keys are used.
const lightningHook = "DeviceStatsMonitor.on_train_batch_end/"

// composerKeys are those of Composer's MemoryMonitor, without "memory/", by PyTorch's; sizes are in 10^9 bytes there.
var composerKeys = map[string]string{
	"allocated_bytes.all.current": "current_allocated_mem", "active_bytes.all.current": "current_active_mem",
	"inactive_split_bytes.all.current": "current_inactive_mem", "reserved_bytes.all.current": "current_reserved_mem",
	"allocated_bytes.all.peak": "peak_allocated_mem", "active_bytes.all.peak": "peak_active_mem",
	"inactive_split_bytes.all.peak": "peak_inactive_mem", "reserved_bytes.all.peak": "peak_reserved_mem",
	"num_alloc_retries": "alloc_retries",
}

// WriteSummary writes statistics by the keys of PyTorch, and of what logs them.
func WriteSummary(w io.Writer, r *summary.Report) error {
	out := summaryFile{Format: "gputrace summary", Version: summaryVersion, Devices: []summaryDevice{}}
	for i := range r.Devices {
		out.Devices = append(out.Devices, summaryOf(&r.Devices[i], r.Stages))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(out); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}

func summaryOf(s *figures.MemoryStats, stages []summary.Stages) summaryDevice {
	out := summaryDevice{Device: s.Device, Stats: map[string]uint64{}, Lightning: map[string]uint64{}, Composer: map[string]float64{}}
	for _, k := range s.Known() {
		out.Stats[k.Key] = k.Value
		out.Lightning[lightningHook+k.Key] = k.Value
		name, ok := composerKeys[k.Key]
		switch {
		case ok && k.Key == "num_alloc_retries":
			out.Composer["memory/"+name] = float64(k.Value)
		case ok:
			out.Composer["memory/"+name] = significant(float64(k.Value) / 1e9)
		}
	}
	if i := slices.IndexFunc(stages, func(x summary.Stages) bool { return x.Device == s.Device }); i >= 0 {
		x := &stages[i]
		out.Transformers = map[string]int64{
			"before_init_mem_gpu":      int64(x.Init.Begin),
			"init_mem_gpu_alloc_delta": x.Init.AllocDelta(), "init_mem_gpu_peaked_delta": x.Init.PeakedDelta(),
			"train_mem_gpu_alloc_delta": x.Train.AllocDelta(), "train_mem_gpu_peaked_delta": x.Train.PeakedDelta(),
		}
	}
	return out
}

// significant rounds to five digits, as Composer does.
func significant(x float64) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}
