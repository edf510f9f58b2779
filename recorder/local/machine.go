// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/machine"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/inspect/frameworks"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

const (
	// surveyTimeout limits the survey of all processes; whatever is not known by then is not shown.
	surveyTimeout = 3 * time.Second
	// totalsTimeout limits the reading of one process's allocator state.
	totalsTimeout = time.Second
	// readers is the number of allocators that are read at the same time.
	readers = 4
	// shownArguments is the number of arguments that are kept of a command line.
	shownArguments = 32
)

// candidate is a process that may use a GPU.
type candidate struct {
	process *process.Process
	maps    []process.Mapping // nil: no permission to read them
	out     machine.Process
}

// Survey finds the processes of this machine that use a GPU. It attaches to nothing and loads nothing into the kernel.
func Survey(ctx context.Context) (*machine.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	return lookAround(ctx, OpenDriver(), find)
}

func lookAround(ctx context.Context, driver *Driver, find finder) (*machine.Report, error) {
	s := &survey{find: find}
	if err := s.look(); err != nil {
		return nil, err
	}
	s.readStates(ctx)
	reading, err := driver.reading(ctx)
	var found []machine.Process
	for _, c := range s.candidates {
		c.addDriver(reading)
		if c.maps != nil || c.out.Driver {
			found = append(found, c.out)
		}
	}
	r := machine.New(found)
	r.Searched, r.Hidden, r.Python = s.searched, s.hidden, s.python
	r.GPUs = gpus(reading)
	r.Missing = missing(err)
	return r, nil
}

// reading returns NVML's figures of all devices.
func (d *Driver) reading(ctx context.Context) (*nvml.Reading, error) {
	select {
	case <-d.opened:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the GPU's driver: %w", ctx.Err())
	}
	if d.err != nil {
		return nil, d.err
	}
	return d.library.Read()
}

// survey is one survey of all processes.
type survey struct {
	find                     finder
	candidates               []*candidate
	searched, hidden, python int
}

// look finds the processes that have mapped the driver's or a framework's library, and those that we have no permission to inspect.
func (s *survey) look() error {
	all, err := running()
	if err != nil {
		return err
	}
	for _, p := range all {
		command := p.Cmdline(shownArguments)
		if len(command) == 0 {
			continue // a kernel thread, or one that has ended
		}
		s.searched++
		maps, err := p.Maps()
		c := &candidate{process: p, maps: maps, out: machine.Process{PID: p.PID, Parent: p.Parent(), Name: p.Name(), Command: command,
			User: userName(p)}}
		switch {
		case errors.Is(err, process.ErrPermission):
			c.out.Why = "not permitted to look into it"
			s.hidden++
			if strings.Contains(path.Base(command[0]), "python") {
				s.python++
			}
		case err != nil || !c.known():
			continue
		}
		s.candidates = append(s.candidates, c)
	}
	return nil
}

// known reports whether the process has mapped a library that shows the use of a GPU, and records which.
func (c *candidate) known() bool {
	loaded := false
	for i := range c.maps {
		m := &c.maps[i]
		if !m.Exec || m.Inode == 0 {
			continue
		}
		c.out.Driver = c.out.Driver || hook.Driver.Matches(m.Path) || hook.HIP.Matches(m.Path) || hook.LevelZero.Matches(m.Path)
		loaded = loaded || hook.Runtime.Matches(m.Path) || strings.HasPrefix(m.Base(), "libtorch_cuda.so")
	}
	if !loaded && !c.out.Driver {
		return false
	}
	c.out.Paused = c.process.Paused().String()
	container := c.process.Container()
	c.out.Container = container.String()
	for _, f := range frameworks.Of(c.process, c.maps) {
		c.out.Frameworks = append(c.out.Frameworks, f.String())
	}
	return true
}

func userName(p *process.Process) string {
	uid, err := p.UID()
	if err != nil {
		return ""
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// readStates reads the allocators' totals of the processes that use a driver, several at a time.
func (s *survey) readStates(ctx context.Context) {
	var all sync.WaitGroup
	slots := make(chan struct{}, readers)
	for _, c := range s.candidates {
		if !c.out.Driver || c.maps == nil {
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			c.readState(ctx, s.find)
		}()
	}
	all.Wait()
}

// readState adds the totals of the process's allocator.
func (c *candidate) readState(ctx context.Context, find finder) {
	ctx, cancel := context.WithTimeout(ctx, totalsTimeout)
	defer cancel()
	allocator, err := find(c.process)
	var totals []inspect.DeviceTotals
	switch {
	case err == nil:
		totals, err = allocator.Totals(ctx)
	case errors.Is(err, inspect.ErrNoAllocator):
		if totals, err = poolTotals(ctx, c.process); errors.Is(err, bfc.ErrNoAllocator) || errors.Is(err, bfc.ErrUnproved) {
			version, _ := frameworks.PyTorch(c.process, c.maps)
			c.out.Unused = version != ""
			return
		}
	}
	err = c.process.Blame(err)
	switch {
	case errors.Is(err, process.ErrEnded):
		c.out.Why = "it has ended"
	case ctx.Err() != nil:
		c.out.Why = "its allocator's totals could not be read in time"
	case errors.Is(err, process.ErrPermission):
		c.out.Why = "not permitted to read its memory"
	case err != nil:
		c.out.Why, _, _ = strings.Cut(err.Error(), "\n")
	}
	c.out.Unused = err == nil
	for _, t := range totals {
		if t.Reserved > 0 {
			c.out.Unused = false
			c.out.Devices = append(c.out.Devices, machine.Memory{Device: t.Device, Driver: event.Unknown, Allocated: t.Allocated,
				Reserved: t.Reserved})
		}
	}
}

// poolTotals reads the totals of TensorFlow's and JAX's allocators by device.
func poolTotals(ctx context.Context, p *process.Process) ([]inspect.DeviceTotals, error) {
	found, err := bfc.Find(ctx, p, bootTime)
	if err != nil {
		return nil, err
	}
	var out []inspect.DeviceTotals
	for _, pool := range found.Pools {
		if pool.Host {
			continue
		}
		s, err := pool.Read(ctx, bootTime)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(out, func(t inspect.DeviceTotals) bool { return t.Device == pool.Device })
		if at < 0 {
			at, out = len(out), append(out, inspect.DeviceTotals{Device: pool.Device})
		}
		out[at].Allocated, out[at].Reserved = out[at].Allocated+s.InUse, out[at].Reserved+s.Reserved
	}
	return out, nil
}

// addDriver adds NVML's figures of the process. r may be nil.
func (c *candidate) addDriver(r *nvml.Reading) {
	if r == nil {
		return
	}
	uses, _ := r.Of(nvml.NewTarget(c.process)) // without ordinals the uses are complete
	for i := range uses {
		u := &uses[i]
		if !isListed(*u) || u.Used == nvml.Unknown && u.Err != nil && !errors.Is(u.Err, nvml.ErrNoFigure) {
			continue
		}
		c.out.Driver = true
		m := c.device(u.Ordinal, len(uses))
		m.Name, m.Driver = u.Device.Name, unknown(u.Used)
	}
}

// device returns the row of a device, and creates it if necessary. If the process uses one device whose ordinal is not
// known, its row is the only one there is.
func (c *candidate) device(ordinal, uses int) *machine.Memory {
	for i := range c.out.Devices {
		if d := &c.out.Devices[i]; d.Device == ordinal || ordinal < 0 && uses == 1 && len(c.out.Devices) == 1 {
			return d
		}
	}
	c.out.Devices = append(c.out.Devices, machine.Memory{Device: ordinal, Allocated: event.Unknown, Reserved: event.Unknown})
	return &c.out.Devices[len(c.out.Devices)-1]
}

func gpus(r *nvml.Reading) []machine.GPU {
	if r == nil {
		return nil
	}
	var out []machine.GPU
	for i := range r.Devices {
		d := &r.Devices[i]
		out = append(out, machine.GPU{Index: d.Index, Name: d.Name, Used: unknown(d.Used), Total: unknown(d.Total)})
	}
	return out
}

// missing returns what could not be read for other reasons than the permissions of single processes. err is the error of NVML.
func missing(err error) []string {
	var out []string
	switch {
	case errors.Is(err, nvml.ErrNoLibrary):
		out = append(out, "the driver's own figures are not known: NVML (libnvidia-ml.so.1) is not there")
	case err != nil:
		out = append(out, "the driver's own figures are not known: "+err.Error())
	}
	if _, err := os.Stat("/proc/1"); err != nil {
		out = append(out, "other users' processes are not shown to us: /proc is mounted with hidepid")
	}
	if nvml.InnerNamespace() {
		out = append(out, "this is a container: processes outside of it are not seen")
	}
	return out
}
