// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/machine"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/frameworks"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

const (
	// surveyTimeout bounds the look at all processes; what is not known by then is not shown.
	surveyTimeout = 3 * time.Second
	// totalsTimeout bounds the reading of one process's allocator state.
	totalsTimeout = time.Second
	// readers is how many allocators are read at the same time.
	readers = 4
	// shownArguments is how much is kept of a command line.
	shownArguments = 32
)

// candidate is a process that may use a GPU.
type candidate struct {
	process *process.Process
	maps    []process.Mapping // nil: we may not look into it
	out     machine.Process
}

// Survey looks for the processes of this machine that use a GPU. Nothing is attached to, and nothing is loaded into the kernel.
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

// reading is what NVML says of all devices.
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

// survey is a look at all processes.
type survey struct {
	find                     finder
	candidates               []*candidate
	searched, hidden, python int
}

// look finds the processes that have the driver's library or a framework's mapped, and those that cannot be looked into.
func (s *survey) look() error {
	all, err := running()
	if err != nil {
		return err
	}
	for _, p := range all {
		command := p.Cmdline(shownArguments)
		if len(command) == 0 {
			continue // a thread of the kernel, or one that has ended
		}
		s.searched++
		maps, err := p.Maps()
		c := &candidate{process: p, maps: maps, out: machine.Process{PID: p.PID, Parent: p.Parent(), Name: p.Name(), Command: command, User: userName(p)}}
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

// known reports whether the process has mapped what tells of a GPU, and notes what.
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

// readStates reads the allocators' totals of the processes that use a driver, some at a time.
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

// readState adds what the process's own allocator counts.
func (c *candidate) readState(ctx context.Context, find finder) {
	ctx, cancel := context.WithTimeout(ctx, totalsTimeout)
	defer cancel()
	allocator, err := find(c.process)
	if errors.Is(err, inspect.ErrNoAllocator) {
		version, _ := frameworks.PyTorch(c.process, c.maps)
		c.out.Unused = version != ""
		return
	}
	var totals []inspect.DeviceTotals
	if err == nil {
		totals, err = allocator.Totals(ctx)
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
			c.out.Devices = append(c.out.Devices, machine.Memory{Device: t.Device, Driver: event.Unknown, Allocated: t.Allocated, Reserved: t.Reserved})
		}
	}
}

// addDriver adds what NVML says of the process. nil: nothing.
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

// device is the row of a device, which is made where there is none. Of one device whose number is not known, it is the only one that
// there is.
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

// missing says what could not be seen for other reasons than the rights on single processes. err is why NVML says nothing.
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
