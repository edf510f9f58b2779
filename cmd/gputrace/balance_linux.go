//go:build amd64

package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

// driver asks the GPU driver for its own figures. It is started in the background, as that can take seconds.
type driver struct {
	opened  chan struct{} // closed when library and err are there
	library *nvml.Library
	err     error

	looked  chan struct{} // closed when what follows is there; nil: look was not called
	fresh   bool          // the process had no device memory
	version string        // of the driver; empty: not told
	seen    []nvml.Use    // the devices that the process sees; those without an ordinal are not told apart
}

// openDriver starts NVML.
func openDriver() *driver {
	d := &driver{opened: make(chan struct{})}
	go func() {
		defer close(d.opened)
		d.library, d.err = nvml.Open(nil)
	}()
	return d
}

// look finds out whether the process has no device memory yet, now or a moment later: then it had none before either.
func (d *driver) look(p *process.Process) {
	d.looked = make(chan struct{})
	empty := !loadsDriver(p)
	go func() {
		defer close(d.looked)
		r, uses, err := d.ask(p)
		d.fresh = empty || len(uses) > 0 && (err == nil || errors.Is(err, nvml.ErrOrder)) && !slices.ContainsFunc(uses, isListed)
		d.seen = uses
		if r != nil {
			d.version = r.Driver
		}
	}()
}

// toldDevices is how many devices are named in one line.
const toldDevices = 2

// told is what look has found out so far, for people: the driver's version and the devices; empty when there is nothing yet.
func (d *driver) told() (version string, devices []string) {
	select {
	case <-d.looked:
	default:
		return "", nil
	}
	for i := range d.seen {
		if i == toldDevices {
			devices = append(devices, fmt.Sprintf("and %d more", len(d.seen)-i))
			break
		}
		u := &d.seen[i]
		name := "cuda:?"
		if u.Ordinal >= 0 {
			name = fmt.Sprint("cuda:", u.Ordinal)
		}
		devices = append(devices, fmt.Sprintf("%s %s %s", name, u.Device.Name, table.Bytes(unknown(u.Device.Total))))
	}
	return d.version, devices
}

// isListed is also true where the driver does not say whether it lists the process.
func isListed(u nvml.Use) bool { return !errors.Is(u.Err, nvml.ErrNotListed) }

// read gives the driver's figures of a process; the error says why there are none, or why their devices are not known.
func (d *driver) read(p *process.Process) ([]nvml.Use, error) {
	if d.looked != nil {
		<-d.looked
	}
	_, uses, err := d.ask(p)
	return uses, err
}

func (d *driver) ask(p *process.Process) (*nvml.Reading, []nvml.Use, error) {
	<-d.opened
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

// loadsDriver says whether a process has a GPU driver's library, without which it has no device memory.
func loadsDriver(p *process.Process) bool {
	maps, err := p.Maps()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(maps, func(m process.Mapping) bool {
		return m.Inode != 0 && (hook.Driver.Matches(m.Path) || hook.HIP.Matches(m.Path) || hook.LevelZero.Matches(m.Path))
	})
}

// moment is what the driver and the caching allocator's books say of a process, both at the same time if they can be had so.
type moment struct {
	books     *allocator.State
	booksErr  error
	uses      []nvml.Use
	driverErr error
	moved     bool
}

const (
	momentTries    = 5
	momentPatience = time.Second
	// booksPatience is how long a moment is waited for in which all of the books stand still.
	booksPatience = 500 * time.Millisecond
)

// readMoment reads the books between two readings of the driver, until those agree. allocator nil: there are no books.
func readMoment(p *process.Process, d *driver, allocator *inspect.Allocator) *moment {
	m := &moment{}
	m.uses, m.driverErr = d.read(p)
	for end, tries := time.Now().Add(momentPatience), 1; ; tries++ {
		if !m.readBooks(allocator) {
			return m
		}
		before := m.uses
		if len(before) > 0 {
			m.uses, m.driverErr = d.read(p)
		}
		m.moved = !slices.EqualFunc(before, m.uses, sameUse)
		if !m.moved || tries == momentTries || time.Now().After(end) {
			return m
		}
	}
}

// readBooks reports whether the books could be read. Those that were read before stay.
func (m *moment) readBooks(source *inspect.Allocator) bool {
	if source == nil {
		return true
	}
	read, err := source.MapNow(booksPatience)
	switch {
	case err == nil:
		m.books = allocator.New(read)
	case m.books == nil:
		m.booksErr = err
	}
	return err == nil
}

func sameUse(x, y nvml.Use) bool {
	return x.Ordinal == y.Ordinal && x.Used == y.Used && x.Device.Index == y.Device.Index && x.Device.MIG == y.Device.MIG
}

// input puts the moment into the form that can be added up.
func (m *moment) input(pid int) *balance.Input {
	in := &balance.Input{PID: uint32(pid), Moved: m.moved}
	if m.books != nil {
		in.Torch = m.books.Torch()
	}
	if m.driverErr != nil {
		in.DriverWhy = m.driverErr.Error()
	}
	for i := range m.uses {
		in.Driver = append(in.Driver, driverUse(&m.uses[i]))
	}
	return in
}

func driverUse(u *nvml.Use) balance.DriverUse {
	out := balance.DriverUse{
		Device: u.Ordinal, Used: unknown(u.Used), Name: u.Device.Name, UUID: u.Device.UUID, Total: unknown(u.Device.Total), All: unknown(u.Device.Used),
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

// balance is what tells where the target's memory is, at the end of the recording.
func (s *session) balance(m *moment, view *view.View) *balance.Input {
	in := m.input(s.target.PID)
	in.View = view
	in.Whole = s.driver.fresh
	parts := s.torchParts()
	switch {
	case parts != nil && (m.books == nil || !sameMoment(in.Torch, parts)):
		in.Torch = parts // the job went on while the books were read
		if !s.target.Alive() {
			in.DriverWhy, in.Driver = "the process has ended", nil
		}
	case m.books != nil:
	case !s.target.Alive():
		in.TorchWhy, in.DriverWhy, in.Driver = "the process has ended", "the process has ended", nil
	case m.booksErr != nil:
		in.TorchWhy = m.booksErr.Error()
	case s.books.err != nil && !errors.Is(s.books.err, inspect.ErrNoAllocator) && !errors.Is(s.books.err, inspect.ErrOtherBackend):
		in.TorchWhy = s.books.err.Error()
	}
	return in
}

// torchParts is how the caching allocator's segments are used at the last event, by the events; nil when that is not known of
// every device.
func (s *session) torchParts() []allocator.TorchMemory {
	var out []allocator.TorchMemory
	books := s.heap.Totals()
	for i := range books.Accounts {
		a := &books.Accounts[i]
		p, ok := s.heap.Parts(a.PID, a.Device)
		if !ok || a.Device.Index < 0 {
			return nil
		}
		out = append(out, allocator.TorchMemory{Device: int(a.Device.Index), Memory: allocator.Memory{
			Reserved: p.Reserved, Allocated: p.Allocated, Requested: p.Requested, Pending: event.Unknown, InactiveSplit: p.InactiveSplit, Free: p.Free,
		}})
	}
	return out
}

// sameMoment says whether the books tell of the same blocks as the events.
func sameMoment(books, events []allocator.TorchMemory) bool {
	empty := func(t allocator.TorchMemory) bool { return t.Reserved == 0 }
	books, events = slices.DeleteFunc(slices.Clone(books), empty), slices.DeleteFunc(slices.Clone(events), empty)
	return slices.EqualFunc(books, events, func(x, y allocator.TorchMemory) bool {
		return x.Device == y.Device && x.Allocated == y.Allocated && x.Reserved == y.Reserved
	})
}
