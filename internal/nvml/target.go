// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"os"
	"strings"

	"github.com/gputrace/gputrace/process"
)

// Target is what tells which of NVML's devices and processes are those of one program.
type Target struct {
	// PIDs are its numbers: as we see it first, then in each PID namespace further in.
	PIDs []int
	// Visible is CUDA_VISIBLE_DEVICES; nil: not set, so that all devices are visible.
	Visible *string
	// Order is CUDA_DEVICE_ORDER; empty: not set.
	Order string
	// Environment says why Visible and Order are not known; nil when they are.
	Environment error

	hasNode func(minor int) bool // whether it sees /dev/nvidiaN
	sees    func(pid int) bool   // whether we see a process of that number
	inner   bool                 // we are in a PID namespace of our own, whose processes the driver may number otherwise
}

// NewTarget looks at a process. Which devices it sees is taken from its environment as it is now, else as it was at its
// start.
func NewTarget(p *process.Process) *Target {
	t := &Target{
		PIDs:    p.PIDs(),
		hasNode: func(minor int) bool { return p.Exists(fmt.Sprintf("/dev/nvidia%d", minor)) },
		sees:    func(pid int) bool { _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); return err == nil },
		inner:   InnerNamespace(),
	}
	environment, err := environ(p)
	if err != nil {
		t.Environment = err
		return t
	}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "CUDA_VISIBLE_DEVICES":
			t.Visible = &value
		case "CUDA_DEVICE_ORDER":
			t.Order = value
		}
	}
	return t
}

// initialPIDNamespace is the inode of the PID namespace in which a machine starts (PROC_PID_INIT_INO, linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

// InnerNamespace reports whether we are in a PID namespace of our own, as in a container.
func InnerNamespace() bool {
	link, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && link != initialPIDNamespace
}
