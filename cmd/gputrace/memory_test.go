// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"testing"

	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/stretchr/testify/require"
)

// TestMemoryModesOfTracer: the flag takes what the tracer knows, by the same names.
func TestMemoryModesOfTracer(t *testing.T) {
	require.Equal(t, directmap.Modes, memoryModes)
}
