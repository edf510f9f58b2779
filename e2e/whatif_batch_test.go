// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// batchWorkload is a program that is recorded with three sizes of its batch, and then looked for the largest on a small device.
type batchWorkload struct {
	script string
	args   []string
	sizes  []int
	memory int // of the device, MiB
	short  bool
}

var batchWorkloads = []batchWorkload{
	{"mlp.py", []string{"--steps", "3", "--hidden", "2048"}, []int{512, 1024, 2048}, 760, true},
	{"resnet.py", []string{"--steps", "3", "--size", "64"}, []int{16, 64, 128}, 1000, false},
	{"gpt.py", []string{"--steps", "3", "--layers", "4", "--width", "256", "--vocab", "5000", "--seq", "128"}, []int{4, 8, 16}, 1400, false},
	{"recompute.py", []string{"--steps", "3"}, []int{8, 16, 32}, 1400, true},
}

// TestLargestBatch: of three recordings, the batch that is said to fit runs on a device of that size, and the one
// that is said not to fit runs out of memory. With -whatif it is every workload, and the largest batch that really
// runs is searched for.
func TestLargestBatch(t *testing.T) {
	for i := range batchWorkloads {
		w := &batchWorkloads[i]
		if !*allWhatIf && !w.short {
			continue
		}
		t.Run(w.script, func(t *testing.T) {
			said := w.ask(t)
			t.Logf("| %s | %d | %d | %d |", w.script, w.memory, said.Largest, said.Fails)
			require.True(t, w.fits(t, said.Largest), "a batch of %d", said.Largest)
			require.False(t, w.fits(t, said.Fails), "a batch of %d", said.Fails)
			if !*allWhatIf {
				return
			}
			low, high := said.Largest, said.Fails
			for high-low > 1 {
				if middle := (low + high) / 2; w.fits(t, middle) {
					low = middle
				} else {
					high = middle
				}
			}
			t.Logf("| %s | %d | %d | %d | %d |", w.script, w.memory, said.Largest, said.Fails, low)
		})
	}
}

// batchReport is the part of gputrace whatif --batch.
type batchReport struct {
	Slope   float64 `json:"bytes_per_sample"`
	Fixed   float64 `json:"bytes_without"`
	Off     float64 `json:"largest_residual_bytes"`
	Largest int     `json:"largest_batch"`
	Fails   int     `json:"smallest_failing_batch"`

	Replayed bool `json:"replayed"`
}

// ask records the workload with each size, and asks for the largest.
func (w *batchWorkload) ask(t *testing.T) *batchReport {
	t.Helper()
	args, sizes := []string{"whatif"}, []string{}
	for _, n := range w.sizes {
		args = append(args, recordWhatIf(t, w.script, w.with(n)))
		sizes = append(sizes, itoa(n))
	}
	args = append(args, "--json", "--batch", strings.Join(sizes, ","), "--outside", itoa(whatIfContext>>20)+"MiB", "--device-memory",
		fmt.Sprintf("%dMiB", w.memory))
	text, err := exec.Command(env.binary, args...).Output()
	require.NoError(t, err)
	var out struct {
		Batches *batchReport `json:"batches"`
	}
	require.NoError(t, json.Unmarshal(text, &out))
	require.NotNil(t, out.Batches, string(text))
	t.Logf("%+v", *out.Batches)
	return out.Batches
}

func (w *batchWorkload) with(batch int) []string {
	return append(append([]string{}, w.args...), "--batch", itoa(batch))
}

// fits runs the workload on the small device.
func (w *batchWorkload) fits(t *testing.T, batch int) bool {
	t.Helper()
	truth := runWhatIf(t, []string{fmt.Sprintf("STANDIN_GPU_MEM=%dMiB", w.memory)}, w.script, w.with(batch))
	t.Logf("%d: peak %d, %s", batch, truth.Peak, truth.failure())
	return truth.Failed == nil
}
