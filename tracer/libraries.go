// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// Prepare makes the unwind tables of what a process has mapped and keeps them in dir (Options.CacheDir), where Add finds them: a
// program that was never seen takes seconds, in which nobody reads the ring. It may run beside anything. What goes wrong is Add's
// to report.
func Prepare(p *process.Process, dir string) { mapped.Prepare(p, dir) }
