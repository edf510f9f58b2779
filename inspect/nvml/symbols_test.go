//go:build linux && cgo

package nvml

import (
	"debug/elf"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoLinkToNVML: a program that refers to NVML's functions itself does not start where there is no NVML, if its linker
// was told -z now.
func TestNoLinkToNVML(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	f, err := elf.Open(exe)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	require.NotEmpty(t, symbols)
	for _, s := range symbols {
		require.False(t, strings.HasPrefix(s.Name, "nvml"), "%s: run go generate", s.Name)
	}
}
