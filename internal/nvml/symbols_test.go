// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"debug/elf"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoLinkToNVML: a program that refers to NVML's functions itself does not start where there is no NVML, if its linker
// was given -z now.
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

// TestPrototypes: each function is declared in functions.h as it is in the nvml.h that go-nvml comes with. A compiler compares.
func TestPrototypes(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	require.NoError(t, err)
	const program = `
#define NVML_NO_UNVERSIONED_FUNC_DEFS // the first forms of functions, too
#include "nvml.h"
#include "functions.h"
#define COMPARE(name, parameters, arguments) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), nvmlReturn_t (*)parameters), #name " is another");
NVML_FUNCTIONS(COMPARE)
_Static_assert(NVML_SUCCESS == 0 && NVML_ERROR_FUNCTION_NOT_FOUND == 13, "results");
`
	compile := func(text string) (string, error) {
		cmd := exec.Command("gcc", "-std=gnu11", "-fsyntax-only", "-I", ".", "-I", strings.TrimSpace(string(dir))+"/pkg/nvml", "-x", "c", "-")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := compile(program)
	require.NoError(t, err, out)
	out, err = compile(program + "COMPARE(nvmlDeviceGetName, (nvmlDevice_t device, char *name, long length), )")
	require.Error(t, err, "a wrong one is found")
	require.Contains(t, out, "nvmlDeviceGetName is another")
}
