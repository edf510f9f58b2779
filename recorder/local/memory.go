// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/internal/size"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer/hook"
)

// Driver queries the GPU driver's own figures. It starts in the background, which can take seconds.
type Driver struct {
	opened  chan struct{} // closed when library and err are set
	library library
	err     error
}

// library has the methods of NVML that are used here.
type library interface {
	Read() (*nvml.Reading, error)
}

// OpenDriver starts NVML.
func OpenDriver() *Driver {
	d := &Driver{opened: make(chan struct{})}
	go func() {
		defer close(d.opened)
		d.library, d.err = nvml.Open(nil)
	}()
	return d
}

// ask returns the driver's figures of a process; the error is the reason why there are none, or why their devices are not known.
func (d *Driver) ask(ctx context.Context, p *process.Process) (*nvml.Reading, []nvml.Use, error) {
	select {
	case <-d.opened:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("wait for the GPU's driver: %w", ctx.Err())
	}
	if d.err != nil {
		return nil, nil, d.err
	}
	r, err := d.library.Read()
	if err != nil {
		return nil, nil, err
	}
	uses, err := r.Of(nvml.NewTarget(p))
	return r, uses, err
}

// firstLook is the driver's answer about a process when its trace began.
type firstLook struct {
	done    chan struct{} // closed when the fields below are set
	fresh   bool          // the process had no device memory
	version string        // of the driver; empty: not known
	seen    []nvml.Use    // the devices that the process sees; those without an ordinal cannot be distinguished
	single  bool          // cuda:0 is the only device that the process can have
}

// look finds out whether the process has no device memory, now or a moment later; then it had none before either.
func (d *Driver) look(ctx context.Context, p *process.Process) *firstLook {
	l := &firstLook{done: make(chan struct{})}
	empty := !loadsDriver(p)
	go func() {
		defer close(l.done)
		r, uses, err := d.ask(ctx, p)
		l.fresh = empty || len(uses) > 0 && (err == nil || errors.Is(err, nvml.ErrOrder)) && !slices.ContainsFunc(uses, isListed)
		l.seen = uses
		if r != nil {
			l.version = r.Driver
			l.single = seesOne(r, uses, l.fresh)
		}
	}()
	return l
}

// seesOne reports whether a process can have only one device, because the machine has one or the process is shown one. The devices
// shown to a process no longer change once it has begun to use the driver.
func seesOne(r *nvml.Reading, uses []nvml.Use, fresh bool) bool {
	return len(r.Devices) == 1 || !fresh && len(uses) == 1 && uses[0].Ordinal == 0
}

// answered reports whether the driver has answered.
func (l *firstLook) answered() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// shownDevices is the number of devices listed in one line.
const shownDevices = 2

// known returns, for people, what look has found out so far: the driver's version and the devices; empty when there is nothing yet.
func (l *firstLook) known() (version string, devices []string) {
	if !l.answered() {
		return "", nil
	}
	for i := range l.seen {
		if i == shownDevices {
			devices = append(devices, fmt.Sprintf("and %d more", len(l.seen)-i))
			break
		}
		u := &l.seen[i]
		name := "cuda:?"
		if u.Ordinal >= 0 {
			name = fmt.Sprint("cuda:", u.Ordinal)
		}
		devices = append(devices, fmt.Sprintf("%s %s %s", name, u.Device.Name, size.Text(unknown(u.Device.Total))))
	}
	return l.version, devices
}

// isListed reports whether the driver lists the process; true also if the driver does not say.
func isListed(u nvml.Use) bool { return !errors.Is(u.Err, nvml.ErrNotListed) }

// loadsDriver reports whether a process has loaded a GPU driver's library, without which it has no device memory.
func loadsDriver(p *process.Process) bool {
	maps, err := p.Maps()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(maps, func(m process.Mapping) bool {
		return m.Inode != 0 && (hook.Driver.Matches(m.Path) || hook.HIP.Matches(m.Path) || hook.LevelZero.Matches(m.Path))
	})
}

// Reading is the driver's figures and the caching allocator's state of a process, both at one moment if possible.
type Reading struct {
	Time      uint64           // end of the reading, CLOCK_BOOTTIME nanoseconds
	State     *allocator.State // nil: see StateErr, or there is no allocator
	StateErr  error
	stats     []inspect.MemoryStats // nil: not known
	limits    [][]uint64            // by device: possible values of the program's own limit
	sizes     []uint64              // by device: its memory, as CUDA reported it to the program; 0: not known
	uses      []nvml.Use
	driverErr error
	moved     bool
	target    *nvml.Target
}

const (
	readingTries   = 5
	readingTimeout = time.Second
	// stateTimeout limits the wait for a moment at which the whole allocator state is unchanged.
	stateTimeout = 500 * time.Millisecond
)

// ReadMemory reads the allocator's state between two readings of the driver, until these agree. If source is nil, there
// is no state.
func ReadMemory(ctx context.Context, p *process.Process, d *Driver, source *Allocators) *Reading {
	if source == nil {
		return readMemory(ctx, p, d, nil)
	}
	return readMemory(ctx, p, d, source)
}

func readMemory(ctx context.Context, p *process.Process, d *Driver, source mapReader) *Reading {
	m := &Reading{target: nvml.NewTarget(p)}
	defer func() { m.Time = bootTime() }()
	_, m.uses, m.driverErr = d.ask(ctx, p)
	for end, tries := time.Now().Add(readingTimeout), 1; ; tries++ {
		if !m.readState(ctx, source) {
			return m
		}
		before := m.uses
		if len(before) > 0 {
			_, m.uses, m.driverErr = d.ask(ctx, p)
		}
		m.moved = !slices.EqualFunc(before, m.uses, sameUse)
		if !m.moved || tries == readingTries || time.Now().After(end) || ctx.Err() != nil {
			return m
		}
	}
}

// readState reports whether the state could be read. If not, an earlier one stays.
func (m *Reading) readState(ctx context.Context, source mapReader) bool {
	if source == nil {
		return true
	}
	if m.sizes == nil {
		m.sizes, _ = source.DeviceSizes(ctx)
	}
	read, err := source.MapNow(ctx, stateTimeout)
	switch {
	case err == nil:
		m.State = allocator.New(read)
		m.stats, _ = source.MemoryStats(ctx) // the map is useful without them
		m.limits, _ = source.Limits(ctx)
	case m.State == nil:
		m.StateErr = err
	}
	return err == nil
}

func sameUse(x, y nvml.Use) bool {
	return x.Ordinal == y.Ordinal && x.Used == y.Used && x.Device.Index == y.Device.Index && x.Device.MIG == y.Device.MIG
}

// Memory converts the reading to the form in which figures are added up.
func (m *Reading) Memory() *recorder.Memory {
	out := &recorder.Memory{TorchErr: m.StateErr, DriverErr: m.driverErr, Moved: m.moved, HasTorch: m.State != nil}
	if m.State != nil {
		out.Torch, out.Stats = m.State.Torch(), allocator.Stats(m.stats)
	}
	out.Time = m.Time
	for device, limits := range m.limits {
		for _, l := range limits {
			out.Limits = append(out.Limits, figures.Limit{Device: device, Bytes: figures.Bytes(l)})
		}
	}
	for device, size := range m.sizes {
		if size > 0 {
			out.Sizes = append(out.Sizes, figures.DeviceSize{Device: device, Bytes: figures.Bytes(size)})
		}
	}
	for i := range m.uses {
		out.Driver = append(out.Driver, driverUse(&m.uses[i]))
		if m.uses[i].Ordinal >= 0 && m.uses[i].Used != nvml.Unknown {
			out.Others = append(out.Others, m.others(&m.uses[i]))
		}
	}
	if m.State != nil && m.State.Devices != nil {
		out.Private = privateSegments(m.State)
	}
	return out
}

// others returns the other processes on a device on which the driver lists the process.
func (m *Reading) others(u *nvml.Use) figures.Processes {
	out := figures.Processes{Device: u.Ordinal, By: []figures.ProcessUse{}}
	for _, p := range u.Device.Processes {
		if !slices.Contains(m.target.PIDs, int(p.PID)) {
			out.By = append(out.By, figures.ProcessUse{PID: p.PID, Used: figures.Bytes(unknown(p.Used))})
		}
	}
	return out
}

// privateSegments returns the segments of private pools.
func privateSegments(s *allocator.State) []figures.Range {
	out := []figures.Range{}
	for i := range s.Devices {
		d := &s.Devices[i]
		for k := range d.Segments {
			if g := d.Segments[k].Segment; g.Pool.ID != [2]uint64{} {
				out = append(out, figures.Range{Device: d.Counted.Device, Addr: g.Addr, Size: g.Size, Pool: g.Pool.ID})
			}
		}
	}
	return out
}

// bootTime returns the time on the clock of the events, nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail with a known clock
	return uint64(ts.Nano())
}

func driverUse(u *nvml.Use) figures.DriverUse {
	out := figures.DriverUse{
		Device: u.Ordinal, Used: figures.Bytes(unknown(u.Used)), Name: u.Device.Name, UUID: u.Device.UUID,
		Total: figures.Bytes(unknown(u.Device.Total)), All: figures.Bytes(unknown(u.Device.Used)),
	}
	if u.Err != nil {
		out.Why = u.Err.Error()
	}
	return out
}

func unknown(n uint64) uint64 {
	if n == nvml.Unknown {
		return event.Unknown
	}
	return n
}
