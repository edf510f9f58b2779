// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"time"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// Event is something that happened in a recording: Finding, OutOfMemory, Survived, Alert, Loss, Comparison, HoldersUnread,
// Unused or Ending. Package recorder/notice writes it for people.
type Event interface{ happened() }

// Finding is news about memory that grows from step to step.
type Finding struct {
	Process *Process
	News    News
	Leak    leaks.Finding // with Further, the first finding that is not announced
	Step    int           // the last step that was judged
}

// News is what is new about a finding.
type News uint8

// The news.
const (
	Growing   News = iota // a line grows
	HeldBy                // it is known what holds the blocks of a line
	FullIn                // it is known when growth will fill a device
	Further               // more lines grow than are announced
	Withdrawn             // a line that was announced does not grow
)

// OutOfMemory is a failed request for memory.
type OutOfMemory struct {
	Process *Process
	Time    uint64 // on the clock of the events
	Device  event.Device
	Site    string // the line of the program that made the request
	Bytes   uint64
	Kept    string // the folder that has the recording up to here; empty: none
}

// Moment returns the process as it is at the failed request. Only Observer.Event may call it.
func (o *OutOfMemory) Moment() *Moment { return o.Process.moment() }

// Survived means that a program goes on after a failed request, and so does a recording that was to end with it.
type Survived struct{ Process *Process }

// Alert is a threshold that was exceeded.
type Alert struct {
	Process *Process
	Alert   *alerts.Alert
}

// Loss is events of a process that were lost.
type Loss struct {
	Process *Process
	Loss    event.Loss
}

// Comparison is the outcome of a comparison of the live set with the allocator's state.
type Comparison struct {
	Process *Process
	Outcome *reconcile.Outcome
}

// HoldersUnread means that a requested scan for holders failed.
type HoldersUnread struct {
	Process *Process
	Err     error
}

// Unused means that a process used no GPU memory, so that it has no results.
type Unused struct{ Process *Process }

// Ending means that the end of the recording was requested.
type Ending struct {
	Recorded time.Duration
	Reading  bool // holders are still read
}

func (*Finding) happened()       {}
func (*OutOfMemory) happened()   {}
func (*Survived) happened()      {}
func (*Alert) happened()         {}
func (*Loss) happened()          {}
func (*Comparison) happened()    {}
func (*HoldersUnread) happened() {}
func (*Unused) happened()        {}
func (*Ending) happened()        {}

// comparisons passes the outcomes of a process's comparisons to the observer.
type comparisons struct{ process *Process }

func (c comparisons) Compared(o *reconcile.Outcome) {
	c.process.observer.Event(&Comparison{c.process, o})
}
func (c comparisons) Warning(err error) { c.process.observer.Warning(err) }
