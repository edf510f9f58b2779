// SPDX-License-Identifier: Apache-2.0

// Package nvml tells what the GPU driver itself says that a process uses, which is what nvidia-smi shows, through NVIDIA's
// management library (libnvidia-ml.so.1, part of the driver). The library runs in our own process and does nothing in the
// target. What it does not tell is Unknown, with the reason, never 0.
//
// Sources: nvml.h of NVML 13.0 (github.com/NVIDIA/go-nvml v0.13.0-1), and the chapters "CUDA Environment Variables" of the
// CUDA C++ Programming Guide and "CUDA Visible Devices" of the MIG User Guide.
package nvml

import (
	"errors"
	"fmt"
	"time"
)

// Unknown marks a number of bytes that is not known.
const Unknown = ^uint64(0)

// Errors on which callers branch.
var (
	ErrNoLibrary = errors.New("NVML is not there")
	ErrTimeout   = errors.New("NVML does not answer")
	ErrNotListed = errors.New("NVML does not list the process")
	ErrNoFigure  = errors.New("NVML lists the process without its memory")
	ErrOrder     = errors.New("which device is which is not known")
)

// Options may be nil.
type Options struct {
	Library string        // path or name of the library; empty: libnvidia-ml.so.1, as the dynamic linker finds it
	Limit   time.Duration // for each call of this package; 0: 3 s
}

// defaultLimit is long enough for a driver that has to start its devices first (persistence mode off).
const defaultLimit = 3 * time.Second

// Reading is what NVML says at one moment.
type Reading struct {
	Driver  string   // version, such as "580.65.06"; empty: not known
	Devices []Device // by NVML's index, which is the order of the PCI bus; of a GPU in MIG mode, its MIG devices
}

// Device is a GPU that is used as a whole, or one MIG device of a GPU.
type Device struct {
	Index int // of the GPU, as NVML counts
	Minor int // N of the GPU's /dev/nvidiaN; -1: not known

	Product string // of the GPU, such as "NVIDIA H200"; empty: not known
	Name    string // Product, or the MIG device's own name, such as "NVIDIA H200 MIG 1g.18gb"
	UUID    string // "GPU-...", or "MIG-..." of a MIG device
	Bus     string // PCI address, such as "00000000:01:00.0"

	MIG             int    // index on the GPU; -1: the GPU as a whole
	GPUInstance     int    // -1: none, or not known
	ComputeInstance int    // -1: none, or not known
	GPU             string // UUID of the GPU that the MIG device is a part of; UUID again where it is none

	// Total is what programs can have, bytes; Unknown. The driver sets a part of the GPU aside (480 MiB of an H100's 81,559), which
	// nvidia-smi's total contains and cudaMemGetInfo's does not. With drivers before 510, which do not say how much, it is in it.
	Total uint64
	Used  uint64 // bytes, of Total; Unknown. Some MiB of it can be of no process

	Processes []Process
	Err       error // why the processes are not known
}

// Process is the memory of one process on one device.
type Process struct {
	PID  uint32 // in the PID namespace that the driver chose: see Target
	Used uint64 // bytes; Unknown
}

// backend is what knows the library. Its calls can hang, and are not made at the same time.
type backend interface {
	read() (*Reading, error)
	close() error
}

// Library is NVML, loaded. Not safe for concurrent use.
type Library struct {
	backend backend
	limit   time.Duration
	stuck   bool // a call has not come back: no other is made
}

// Open loads NVML and starts it. The error wraps ErrNoLibrary when there is none, or no driver, and ErrTimeout.
func Open(o *Options) (*Library, error) {
	var options Options
	if o != nil {
		options = *o
	}
	if options.Limit == 0 {
		options.Limit = defaultLimit
	}
	b, err := within(options.Limit, func() (backend, error) { return load(options.Library) })
	if err != nil {
		return nil, fmt.Errorf("start NVML: %w", err)
	}
	return &Library{backend: b, limit: options.Limit}, nil
}

// Read asks for all devices. The error wraps ErrTimeout when the driver does not answer; from then on it is at once the
// answer to every call.
func (l *Library) Read() (*Reading, error) {
	if l.stuck {
		return nil, fmt.Errorf("read NVML: %w: an earlier call has not come back", ErrTimeout)
	}
	r, err := within(l.limit, l.backend.read)
	l.stuck = errors.Is(err, ErrTimeout)
	if err != nil {
		return nil, fmt.Errorf("read NVML: %w", err)
	}
	return r, nil
}

// Close unloads NVML. It leaves a library alone that does not answer.
func (l *Library) Close() error {
	if l.stuck {
		return nil
	}
	_, err := within(l.limit, func() (struct{}, error) { return struct{}{}, l.backend.close() })
	l.stuck = true
	if err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	return nil
}

// within runs a call that may hang for ever, for instance in a driver that has lost its GPU. Then its goroutine and its
// thread stay behind.
func within[T any](limit time.Duration, call func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if r := recover(); r != nil {
				o.err = fmt.Errorf("the library's answer cannot be meant: %v", r)
			}
			done <- o
		}()
		o.value, o.err = call()
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-time.After(limit):
		var none T
		return none, fmt.Errorf("%w: no answer for %v", ErrTimeout, limit)
	}
}

// maxProcesses bounds what is believed of a list.
const maxProcesses = 1 << 16

// addProcess adds a process to a list that may have it. A process that computes has memory: 0 is what a driver says that
// looks for it in the wrong PID namespace.
func addProcess(list []Process, p Process) []Process {
	if p.Used == 0 {
		p.Used = Unknown // NVML_VALUE_NOT_AVAILABLE is Unknown already
	}
	for i := range list {
		if list[i].PID != p.PID {
			continue
		}
		if list[i].Used == Unknown || p.Used != Unknown && p.Used > list[i].Used {
			list[i].Used = p.Used
		}
		return list
	}
	return append(list, p)
}
