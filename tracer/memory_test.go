// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/tracer/directmap"
)

// TestMemoryModes loads the real programs in each way.
func TestMemoryModes(t *testing.T) {
	for _, m := range []directmap.Mode{directmap.Auto, directmap.Copy, directmap.InPlace} {
		t.Run(m.String(), func(t *testing.T) {
			tr := Open(&Options{Memory: m, RingBytes: 1 << 16})
			defer tr.Close()
			require.NoError(t, tr.Ready())
			use := tr.Memory()
			copies := m == directmap.Auto && directmap.Safe() != nil
			require.Equal(t, m != directmap.Copy && !copies, use.InPlace, "%v", use.Why)
			require.Equal(t, use.InPlace, use.Source != "")
			require.Equal(t, copies, len(tr.Notices()) > 0)
			require.Empty(t, tr.Warnings())
		})
	}
}
