// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
)

// Use is what the driver says that a program uses on one device.
type Use struct {
	Ordinal int // as the program numbers the device; -1: not known
	Device  *Device
	Used    uint64 // bytes; Unknown
	Err     error  // why Used is Unknown: wraps ErrNotListed or ErrNoFigure, or says why NVML does not list processes
}

// Of returns a program's devices: those that it sees and those on which NVML lists it, by ordinal. The error wraps ErrOrder and
// says why the ordinals are not known; the uses are complete nevertheless.
func (r *Reading) Of(t *Target) ([]Use, error) {
	seen, err := r.visible(t)
	var out []Use
	for i, d := range seen {
		out = append(out, r.use(t, d, i))
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		if contains(out, d) {
			continue
		}
		u := r.use(t, d, -1)
		if u.Used == Unknown && !errors.Is(u.Err, ErrNoFigure) {
			continue
		}
		if err == nil {
			err = fmt.Errorf("%w: the program uses a device that CUDA_VISIBLE_DEVICES does not show it", ErrOrder)
		}
		out = append(out, u)
	}
	if err != nil {
		for i := range out {
			out[i].Ordinal = -1
		}
	}
	return out, err
}

func contains(uses []Use, d *Device) bool {
	for i := range uses {
		if uses[i].Device == d {
			return true
		}
	}
	return false
}

func (r *Reading) use(t *Target, d *Device, ordinal int) Use {
	u := Use{Ordinal: ordinal, Device: d, Used: Unknown}
	switch p := r.lookup(t, d); {
	case d.Err != nil:
		u.Err = d.Err
	case p == nil && r.foreign(t):
		u.Err = fmt.Errorf("%w: its processes are those of another PID namespace (run gputrace where the driver's PIDs are known: on the "+
			"host, or in a container with --pid=host)", ErrNotListed)
	case p == nil:
		u.Err = fmt.Errorf("%w: in a container, without the host's PIDs, it cannot", ErrNotListed)
	case p.Used == Unknown:
		u.Err = ErrNoFigure
	default:
		u.Used = p.Used
	}
	return u
}

// foreign says whether NVML's numbers are not ours: older drivers give the host's PIDs to everybody.
func (r *Reading) foreign(t *Target) bool {
	if !t.inner {
		return false
	}
	for i := range r.Devices {
		for _, p := range r.Devices[i].Processes {
			if !t.sees(int(p.PID)) {
				return true
			}
		}
	}
	return false
}

// lookup finds the program among a device's processes. A number that it has in a namespace further in counts only when
// nobody has that number here.
func (r *Reading) lookup(t *Target, d *Device) *Process {
	if r.foreign(t) {
		return nil
	}
	for i, pid := range t.PIDs {
		for j := range d.Processes {
			if int(d.Processes[j].PID) == pid && (i == 0 || !t.sees(pid)) {
				return &d.Processes[j]
			}
		}
	}
	return nil
}
