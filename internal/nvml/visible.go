// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"strconv"
	"strings"
)

// visible lists the devices that a program sees, in the order in which it numbers them: pointers into the reading. The error
// wraps ErrOrder when that cannot be known from outside.
func (r *Reading) visible(t *Target) ([]*Device, error) {
	if t.Environment != nil {
		return nil, fmt.Errorf("%w: %w", ErrOrder, t.Environment)
	}
	gpus := r.gpus(t)
	if t.Visible == nil {
		return unrestricted(gpus, t.Order)
	}
	var out []*Device
	for _, word := range strings.Split(*t.Visible, ",") {
		d, err := find(gpus, strings.TrimSpace(word), t.Order)
		if err != nil {
			return nil, err
		}
		if d == nil { // what follows a word that names no device is not visible either
			break
		}
		for _, before := range out {
			if before == d { // a device that is named twice makes all of them invisible
				return nil, nil
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// gpu is a GPU as a whole, or the MIG devices that it is divided into.
type gpu []*Device

func (g gpu) divided() bool { return g[0].MIG >= 0 }

// gpus groups the devices by GPU, without those that the program has no device file of. Where it has none at all, device
// files do not tell (the stand-in of the tests, WSL).
func (r *Reading) gpus(t *Target) []gpu {
	nodes := false
	for i := range r.Devices {
		nodes = nodes || t.hasNode(r.Devices[i].Minor)
	}
	var out []gpu
	for i := range r.Devices {
		d := &r.Devices[i]
		switch {
		case nodes && !t.hasNode(d.Minor):
		case len(out) > 0 && out[len(out)-1][0].Index == d.Index:
			out[len(out)-1] = append(out[len(out)-1], d)
		default:
			out = append(out, gpu{d})
		}
	}
	return out
}

// ordered says whether CUDA numbers the GPUs as NVML does, by PCI bus. Without CUDA_DEVICE_ORDER=PCI_BUS_ID the fastest come
// first, by a measure that is not published; GPUs of one product stay in the order of the bus.
func ordered(gpus []gpu, order string) error {
	if order == "PCI_BUS_ID" {
		return nil
	}
	for _, g := range gpus {
		if first := gpus[0][0].Product; g[0].Product != first {
			return fmt.Errorf("%w: CUDA numbers %s and %s by their speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID for the job", ErrOrder, first,
				g[0].Product)
		}
	}
	return nil
}

// unrestricted is what a program sees that restricts nothing: all GPUs; where all are divided, the first MIG device alone.
func unrestricted(gpus []gpu, order string) ([]*Device, error) {
	divided := 0
	for _, g := range gpus {
		if g.divided() {
			divided++
		}
	}
	switch {
	case divided > 0 && divided < len(gpus):
		return nil, fmt.Errorf("%w: some GPUs are in MIG mode; set CUDA_VISIBLE_DEVICES for the job", ErrOrder)
	case divided > 0:
		return []*Device{gpus[0][0]}, nil
	}
	if err := ordered(gpus, order); err != nil {
		return nil, err
	}
	var out []*Device
	for _, g := range gpus {
		out = append(out, g[0])
	}
	return out, nil
}

// find returns the device that a word of CUDA_VISIBLE_DEVICES means: an index, or the UUID of a GPU or MIG device, of which the
// front is enough as long as it is the only such. nil when there is none.
func find(gpus []gpu, word, order string) (*Device, error) {
	if i, err := strconv.Atoi(word); err == nil {
		if i < 0 || i >= len(gpus) {
			return nil, nil
		}
		return gpus[i][0], ordered(gpus, order)
	}
	var found *Device
	for _, g := range gpus {
		for _, d := range g {
			if !named(d, word) {
				continue
			}
			if found != nil && found.GPU == d.GPU && strings.HasPrefix(word, "GPU-") {
				continue // a GPU that is divided is its first MIG device
			}
			if found != nil {
				return nil, nil
			}
			found = d
		}
	}
	return found, nil
}

// named says whether a word is the front of a device's UUID, of its GPU's, or the name that a MIG device had up to driver 465:
// "MIG-GPU-UUID/GPU instance/compute instance".
func named(d *Device, word string) bool {
	switch {
	case strings.HasPrefix(word, "MIG-GPU-"):
		return d.MIG >= 0 && word == fmt.Sprintf("MIG-%s/%d/%d", d.GPU, d.GPUInstance, d.ComputeInstance)
	case strings.HasPrefix(word, "MIG-"):
		return d.MIG >= 0 && strings.HasPrefix(d.UUID, word)
	case strings.HasPrefix(word, "GPU-"):
		return strings.HasPrefix(d.GPU, word)
	}
	return false
}
