//go:build linux && amd64

package main

import (
	"errors"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
)

// books is what the allocator itself counted when we came, read without any probe.
type books struct {
	allocator *inspect.Allocator
	before    []inspect.DeviceTotals
	err       error // why it is not known
}

// readBooks reads the allocator's totals.
func (s *session) readBooks() {
	a, err := inspect.Find(s.target)
	if err != nil {
		s.books.err = err
		return
	}
	s.books.allocator = a
	s.books.before, s.books.err = a.Totals()
}

// sayBefore states what lived before the attach: by the first event where there was one, so that the figure is the
// summary's, else by the allocator's books.
func (s *session) sayBefore(accounts []heap.Account) {
	switch {
	case errors.Is(s.books.err, inspect.ErrNoAllocator):
		return // no PyTorch: the driver's books are not read
	case s.books.err != nil:
		s.screen.say("  before attach: unknown until the first allocation (%v)", s.books.err)
		return
	}
	said := false
	for _, d := range s.books.before {
		for i := range accounts {
			if a := &accounts[i]; int(a.Device.Index) == d.Device && a.Baseline != event.Unknown {
				d.Allocated = a.Baseline
			}
		}
		if d.Allocated > 0 || d.Reserved > 0 {
			s.screen.say("  before attach: %s live in torch on cuda:%d, %s reserved (their stacks are not known)", table.Bytes(d.Allocated), d.Device, table.Bytes(d.Reserved))
			said = true
		}
	}
	if !said {
		s.screen.say("  before attach: nothing live in torch")
	}
}

// completeBaseline gives the heap the totals of devices on which nothing happened during the recording.
func (s *session) completeBaseline() {
	if s.books.allocator == nil {
		s.readBooks() // the allocator may have been loaded since the attach
	}
	if s.books.err != nil {
		return
	}
	totals := s.books.before
	if now, err := s.books.allocator.Totals(); err == nil { // it fails when the target has ended
		totals = now
	}
	for _, d := range totals {
		if d.Reserved > 0 {
			s.heap.SetBaseline(uint32(s.target.PID), event.Device{Type: event.DeviceCUDA, Index: int8(d.Device)}, d.Allocated, d.Reserved)
		}
	}
}
