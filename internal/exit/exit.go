// SPDX-License-Identifier: Apache-2.0

// Package exit has the exit codes of every command, and errors that carry one from where they arise to the end of the program.
package exit

import (
	"errors"
	"fmt"
)

// The exit codes. They are the same for every command and are never renumbered: scripts test for them.
const (
	OK           = 0
	Error        = 1
	Misuse       = 2
	Findings     = 3 // all is well with the command, and it found what it looks for: memory that grows
	Gate         = 4 // all is well with the command, and a rule that was asked for is not met
	Invalid      = 5 // a file that is not what it should be
	NotPermitted = 6
	Nothing      = 7 // no such process, no CUDA, a kernel that does not take the programs
	TargetEnded  = 8 // the target ended before any data
	Interrupted  = 130
)

// The exit codes of a program that was not started, as shells have them.
const (
	NotExecutable = 126
	NotFound      = 127
)

// Codes are all codes with their meaning for people, in order: the manual and docs/use/cli.md have the same.
var Codes = []struct {
	Code    int
	Meaning string
}{
	{OK, "all is well"},
	{Error, "any other error; for doctor: tracing will not work"},
	{Misuse, "the command line is wrong, or an output exists already"},
	{Findings, "for leaks: memory grows from step to step; for oom: a request for memory failed, and the program is not known to have " +
		"survived it"},
	{Gate, "for check, and for record and run with --check: a rule is not met"},
	{Invalid, "a file is not what it should be"},
	{NotPermitted, "not permitted; the message says which capability is missing"},
	{Nothing, "nothing to trace: no such process, it uses no CUDA, or this kernel cannot be traced on"},
	{TargetEnded, "the process ended before any data"},
	{Interrupted, "interrupted before any data"},
}

// coded is an error with its exit code.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// With adds an exit code to an error. An error that has one already keeps it for those who unwrap it, but the outer one counts.
func With(code int, err error) error { return &coded{code, err} }

// Usage is an error of the command line: its exit code is Misuse.
func Usage(format string, args ...any) error { return With(Misuse, fmt.Errorf(format, args...)) }

// Has reports whether an error carries a code.
func Has(err error) bool {
	var c *coded
	return errors.As(err, &c)
}

// Code is the exit code of an error: OK for nil, Error where it carries none.
func Code(err error) int {
	var c *coded
	switch {
	case err == nil:
		return OK
	case errors.As(err, &c):
		return c.code
	}
	return Error
}
