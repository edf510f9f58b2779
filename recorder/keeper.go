// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"time"

	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recording"
)

// Keeper keeps the recordings of processes: recorder/folder keeps them in a folder of results. Its methods are called in the
// goroutine of Run, except Close.
type Keeper interface {
	// Reserve prepares the place of the recordings, before anything is attached to. Its error ends Run.
	Reserve() error
	// Create begins the recording of a process. Without a writer the process is traced, and not recorded. The error is a warning.
	Create(p *Process, info *recording.Info, stack func(event.StackID) *event.Stack) (*recording.Writer, error)
	// Keep saves the recording of a process up to its failed request with this number, counted from 1. What was written is on
	// the disk.
	Keep(p *Process, failure int) (Kept, error)
	// Finish completes the recording of a process that has one.
	Finish(p *Process, end *recording.End) error
	// Drop removes the recording of a process without results. The process need not have one.
	Drop(p *Process) error
	// Close releases the place of the recordings. It is called by Recorder.Close.
	Close() error
}

// Kept is a saved recording that ends with a failed request.
type Kept interface {
	// Name returns its name for people.
	Name() string
	// Follow adds what was recorded since. It is called in the goroutine of Run.
	Follow() error
	// Explain writes why the request failed. It may be called from any goroutine.
	Explain() error
}

// Final is what is known of a process when its recording is over.
type Final struct {
	Began, Ended time.Time
	Events       uint64          // number of the process's events
	View         *view.View      // the live set
	Joined       *view.Joined    // the live set with its holders; nil: they are not known
	Held         []trailer.Table // the holders at the end and, if more was live then, at the highest peak that was scanned
	Info         *recording.Info
	End          *recording.End
}

// Final returns what is known of a process when its recording is over; nil before that.
func (p *Process) Final() *Final {
	if p.done == nil {
		return nil
	}
	return p.done.final
}
