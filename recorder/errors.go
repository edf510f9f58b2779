// SPDX-License-Identifier: Apache-2.0

package recorder

import "errors"

// The ways in which a recording can end without data. Errors that match one of them have a more specific text.
var (
	// ErrInterrupted means that the recording was interrupted before the first event.
	ErrInterrupted = errors.New("interrupted")
	// ErrEndedEarly means that the processes ended before the first event.
	ErrEndedEarly = errors.New("ended before there was anything")
	// ErrNoProcess means that no process was found.
	ErrNoProcess = errors.New("no process")
	// ErrOver means that the recording is over or has not begun, so that there is no live state.
	ErrOver = errors.New("nothing is being recorded")
)

// Outcome is one of the errors above, with a text for people.
type Outcome struct {
	Kind error  // one of the errors above
	Text string // a more specific text
}

func (o *Outcome) Error() string { return o.Text }

// Is reports whether the outcome is of this kind.
func (o *Outcome) Is(target error) bool { return target == o.Kind }

// AttachError is the reason why a process is not traced.
type AttachError struct {
	PID int // 0: no particular process
	Err error
}

func (e *AttachError) Error() string { return e.Err.Error() }
func (e *AttachError) Unwrap() error { return e.Err }

// LaunchError is the reason why a program was not found.
type LaunchError struct{ Err error }

func (e *LaunchError) Error() string { return e.Err.Error() }
func (e *LaunchError) Unwrap() error { return e.Err }
