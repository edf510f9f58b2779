// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/tracer"
)

// TestMemoryModesOfTracer: the flag takes what the tracer knows, by the same names.
func TestMemoryModesOfTracer(t *testing.T) {
	require.Equal(t, tracer.MemoryNames, memoryModes)
}
