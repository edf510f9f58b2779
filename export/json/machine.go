// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/machine"
)

// machineVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const machineVersion = 1

type machineFile struct {
	Format    string           `json:"format"`
	Version   int              `json:"version"`
	GPUs      []machineGPU     `json:"gpus"`
	Processes []machineProcess `json:"processes"`
	Idle      []machineProcess `json:"idle"`
	Searched  int              `json:"searched"`
	Hidden    int              `json:"hidden"`
	Python    int              `json:"hidden_python"`
	Missing   []string         `json:"missing"`
}

type machineGPU struct {
	Index int     `json:"index"`
	Name  *string `json:"name"`
	Used  *uint64 `json:"used"`
	Total *uint64 `json:"total"`
}

type machineProcess struct {
	PID        int             `json:"pid"`
	User       *string         `json:"user"`
	Container  *string         `json:"container"`
	Name       string          `json:"name"`
	Command    []string        `json:"command"`
	Frameworks []string        `json:"frameworks"`
	Paused     string          `json:"paused,omitempty"`
	Devices    []machineMemory `json:"devices"`
	Workers    []int           `json:"workers"`
	Why        *string         `json:"why"`
}

type machineMemory struct {
	Device    *int    `json:"device"`
	Name      *string `json:"name"`
	Driver    *uint64 `json:"driver"`
	Allocated *uint64 `json:"allocated"`
	Reserved  *uint64 `json:"reserved"`
}

// WriteMachine writes the processes that use a GPU, for a program to read.
func WriteMachine(w io.Writer, r *machine.Report) error {
	out := machineFile{
		Format: "gputrace processes", Version: machineVersion, GPUs: []machineGPU{}, Processes: machineProcesses(r.Processes),
		Idle:     machineProcesses(r.Idle),
		Searched: r.Searched, Hidden: r.Hidden, Python: r.Python, Missing: append([]string{}, r.Missing...),
	}
	for _, g := range r.GPUs {
		out.GPUs = append(out.GPUs, machineGPU{g.Index, textOrNull(g.Name), knownBytes(g.Used), knownBytes(g.Total)})
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func machineProcesses(all []machine.Process) []machineProcess {
	out := []machineProcess{}
	for i := range all {
		p := &all[i]
		row := machineProcess{
			PID: p.PID, User: textOrNull(p.User), Container: textOrNull(p.Container), Name: p.Name, Command: p.Command,
			Frameworks: append([]string{}, p.Frameworks...), Devices: []machineMemory{}, Workers: append([]int{}, p.Workers...), Paused: p.Paused,
			Why: textOrNull(p.Why),
		}
		for _, d := range p.Devices {
			m := machineMemory{Name: textOrNull(d.Name), Driver: knownBytes(d.Driver), Allocated: knownBytes(d.Allocated),
				Reserved: knownBytes(d.Reserved)}
			if device := d.Device; device >= 0 {
				m.Device = &device
			}
			row.Devices = append(row.Devices, m)
		}
		out = append(out, row)
	}
	return out
}
