// SPDX-License-Identifier: Apache-2.0

//go:build linux

package limits

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeft lays out control groups of both versions: the tightest on the way to the root counts.
func TestLeft(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text+"\n"), 0o644))
	}
	write("a/b/memory.max", "max")
	write("a/b/memory.current", "1000")
	write("a/memory.max", "5000")
	write("a/memory.current", "2000")
	write("full/memory.max", "100")
	write("full/memory.current", "120")
	write("memory/v1/memory.limit_in_bytes", "9223372036854771712")
	write("memory/v1/memory.usage_in_bytes", "1")
	write("memory/v1/low/memory.limit_in_bytes", "700")
	write("memory/v1/low/memory.usage_in_bytes", "100")
	write("cached/memory.max", "5000")
	write("cached/memory.current", "4900")
	write("cached/memory.stat", "anon 900\nfile 4000\ninactive_file 3000\nactive_file 500")
	write("memory/v1/cached/memory.limit_in_bytes", "700")
	write("memory/v1/cached/memory.usage_in_bytes", "600")
	write("memory/v1/cached/memory.stat", "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40")
	for cgroups, want := range map[string]int{
		"0::/a/b": 3000, "0::/full": 0, "0::/": -1, "": -1, "0::/nowhere": -1, "nonsense": -1,
		"4:memory:/v1/low\n3:cpu:/full\n0::/": 600, "4:memory:/v1": -1, "0::/../../a": 3000,
		"0::/cached": 3600, "4:memory:/v1/cached": 170,
	} {
		left, ok := Memory.left(cgroups, root)
		require.Equal(t, want >= 0, ok, cgroups)
		if ok {
			require.Equal(t, want, int(left), cgroups)
		}
	}
}
