// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// Prepare creates the unwind tables of the libraries that a process has mapped and stores them in dir
// (Options.CacheDir), where Add finds them. For an unknown program this takes seconds, during which Add would not read
// the ring. Prepare may run concurrently with everything else. It ignores errors, which Add reports.
func Prepare(p *process.Process, dir string) { mapped.Prepare(p, dir) }
