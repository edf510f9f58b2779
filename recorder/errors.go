// SPDX-License-Identifier: Apache-2.0

package recorder

import "errors"

// How a recording without data ended, and why there was none. The errors that are one of these have a text that says more.
var (
	// ErrInterrupted: it was interrupted before there was anything.
	ErrInterrupted = errors.New("interrupted")
	// ErrEndedEarly: what was to be recorded ended before there was anything.
	ErrEndedEarly = errors.New("ended before there was anything")
	// ErrNoProcess: no process was found.
	ErrNoProcess = errors.New("no process")
	// ErrOver: the recording is over, or has not begun: there is no live state.
	ErrOver = errors.New("nothing is being recorded")
)

// Outcome is one of the errors above, with a text for people.
type Outcome struct {
	Kind error  // which of them
	Text string // that says more
}

func (o *Outcome) Error() string { return o.Text }

// Is reports whether it is one of the kind.
func (o *Outcome) Is(target error) bool { return target == o.Kind }

// AttachError says why a process is not traced.
type AttachError struct {
	PID int // 0: whichever
	Err error
}

func (e *AttachError) Error() string { return e.Err.Error() }
func (e *AttachError) Unwrap() error { return e.Err }

// LaunchError says why a program was not found.
type LaunchError struct{ Err error }

func (e *LaunchError) Error() string { return e.Err.Error() }
func (e *LaunchError) Unwrap() error { return e.Err }
