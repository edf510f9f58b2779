// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// TestWarn: what could not be read of a process because it has ended is no problem of the trace, and anything else is.
func TestWarn(t *testing.T) {
	tr := &Tracer{}
	other := errors.New("a library is corrupt")
	tr.warn(fmt.Errorf("open libcuda.so.1 of pid 7: %w", process.ErrNotExist))
	tr.warn(fmt.Errorf("open libcuda.so.1 of pid 7: %w", process.ErrEnded))
	tr.warn(other)
	require.Equal(t, []error{other}, tr.Warnings())
	require.Empty(t, tr.Warnings(), "each once")
}
