// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithin: what reads another process can fail, take too long, or have a fault; none of it ends the recording.
func TestWithin(t *testing.T) {
	n, err := within(t.Context(), func() (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, n)
	torn := errors.New("torn")
	_, err = within(t.Context(), func() (int, error) { return 0, torn })
	require.ErrorIs(t, err, torn)
	var none *int
	_, err = within(t.Context(), func() (int, error) { return *none, nil })
	require.ErrorContains(t, err, "a fault of gputrace, please report it: runtime error: invalid memory address")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(torn)
	_, err = within(ctx, func() (int, error) { select {} })
	require.ErrorIs(t, err, torn)
}
