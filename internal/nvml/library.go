// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

//go:generate ./symbols.sh

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "library.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Built says whether this program can load NVML at all: it can on Linux, when it was built with cgo.
const Built = true

// calls keeps calls apart: go-nvml chooses between versions of functions in variables of its package.
var calls sync.Mutex

// library is NVML through go-nvml.
type library struct {
	handle unsafe.Pointer // of open_library
	nvml   nvml.Interface
	driver string
}

// load opens the library and starts it.
func load(path string) (backend, error) {
	calls.Lock()
	defer calls.Unlock()
	path = cmp.Or(path, "libnvidia-ml.so.1")
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	handle := C.open_library(name)
	if handle == nil {
		return nil, fmt.Errorf("%w: %s cannot be loaded", ErrNoLibrary, path)
	}
	l := &library{handle: handle, nvml: nvml.New(nvml.WithLibraryPath(path))}
	if err := startError(l.nvml.Init(), path); err != nil {
		C.close_library(handle)
		return nil, err
	}
	l.driver, _ = valueIf(l.nvml.SystemGetDriverVersion())
	return l, nil
}

func startError(rc nvml.Return, path string) error {
	switch rc {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%w: %s cannot be loaded", ErrNoLibrary, path)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%w: the driver is not loaded", ErrNoLibrary)
	}
	return failed("nvmlInit", rc)
}

// failed is the error of a call. Its text is made at once: it comes from the library, which may be unloaded later.
func failed(call string, rc nvml.Return) error {
	return fmt.Errorf("%s: %s (%d)", call, rc.Error(), int(rc))
}

// known is a value, if the call was successful.
func valueIf[T any](value T, rc nvml.Return) (T, bool) {
	var none T
	if rc != nvml.SUCCESS {
		return none, false
	}
	return value, true
}

// number is a value, or -1.
func number(value int, rc nvml.Return) int {
	if rc != nvml.SUCCESS {
		return -1
	}
	return value
}

func (l *library) close() error {
	calls.Lock()
	defer calls.Unlock()
	defer C.close_library(l.handle)
	if rc := l.nvml.Shutdown(); rc != nvml.SUCCESS {
		return failed("nvmlShutdown", rc)
	}
	return nil
}

func (l *library) read() (*Reading, error) {
	calls.Lock()
	defer calls.Unlock()
	count, rc := l.nvml.DeviceGetCount()
	if rc != nvml.SUCCESS {
		return nil, failed("nvmlDeviceGetCount", rc)
	}
	r := &Reading{Driver: l.driver}
	for i := range count {
		h, rc := l.nvml.DeviceGetHandleByIndex(i)
		if rc != nvml.SUCCESS { // a GPU that has fallen off the bus, or that we may not use
			r.Devices = append(r.Devices, unreadable(i, failed("nvmlDeviceGetHandleByIndex", rc)))
			continue
		}
		r.Devices = append(r.Devices, readGPU(h, i)...)
	}
	return r, nil
}

func unreadable(index int, err error) Device {
	return Device{Index: index, Minor: -1, MIG: -1, GPUInstance: -1, ComputeInstance: -1, Total: Unknown, Used: Unknown, Err: err}
}

// readGPU returns the GPU, or its MIG devices when it is in MIG mode: then nothing runs on the GPU as a whole.
func readGPU(h nvml.Device, index int) []Device {
	gpu := unreadable(index, nil)
	gpu.Minor = number(h.GetMinorNumber())
	gpu.Product, _ = valueIf(h.GetName())
	gpu.Name = gpu.Product
	gpu.UUID, _ = valueIf(h.GetUUID())
	gpu.GPU = gpu.UUID
	if pci, rc := h.GetPciInfo(); rc == nvml.SUCCESS {
		gpu.Bus = text(pci.BusId[:])
	}
	if mode, _, rc := h.GetMigMode(); rc == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		return readMIG(h, gpu)
	}
	gpu.fill(h)
	return []Device{gpu}
}

// text is a C string in an array.
func text(b []uint8) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func readMIG(h nvml.Device, gpu Device) []Device {
	var out []Device
	for i := range max(0, number(h.GetMaxMigDeviceCount())) {
		part, rc := h.GetMigDeviceHandleByIndex(i)
		if rc != nvml.SUCCESS { // NVML_ERROR_NOT_FOUND: not made
			continue
		}
		d := gpu
		d.MIG = i
		d.UUID, _ = valueIf(part.GetUUID())
		if name, ok := valueIf(part.GetName()); ok {
			d.Name = name
		}
		d.GPUInstance, d.ComputeInstance = number(part.GetGpuInstanceId()), number(part.GetComputeInstanceId())
		d.fill(part)
		out = append(out, d)
	}
	return out
}

// fill asks for the memory of a GPU or MIG device, and for its processes.
func (d *Device) fill(h nvml.Device) {
	if m, rc := h.GetMemoryInfo_v2(); rc == nvml.SUCCESS {
		d.Total, d.Used = m.Total-min(m.Reserved, m.Total), m.Used
	} else if m, rc := h.GetMemoryInfo(); rc == nvml.SUCCESS {
		d.Total, d.Used = m.Total, m.Used
	}
	d.Processes, d.Err = processes(h)
}

// processes joins the lists of processes: a process that computes and draws is in two of them, with the same figure.
func processes(h nvml.Device) ([]Process, error) {
	infos, rc := h.GetComputeRunningProcesses()
	if rc != nvml.SUCCESS {
		return nil, failed("nvmlDeviceGetComputeRunningProcesses", rc)
	}
	for _, more := range []func() ([]nvml.ProcessInfo, nvml.Return){h.GetGraphicsRunningProcesses, h.GetMPSComputeRunningProcesses} {
		if found, rc := more(); rc == nvml.SUCCESS {
			infos = append(infos, found...)
		}
	}
	if len(infos) > maxProcesses {
		return nil, errors.New("more processes than can be meant")
	}
	var out []Process
	for _, info := range infos {
		out = addProcess(out, Process{info.Pid, info.UsedGpuMemory})
	}
	return out, nil
}
