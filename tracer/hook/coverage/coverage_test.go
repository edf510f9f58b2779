// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/tracer/hook"
)

func recordedAll(t *testing.T) (Names, []Package) {
	t.Helper()
	all, err := packages()
	require.NoError(t, err)
	names, err := parseNames(recordedNames, all)
	require.NoError(t, err)
	require.Greater(t, len(names), 1500)
	return names, all
}

// TestEveryFunctionIsDecided is the check that CI makes with the headers themselves, on the names that are recorded.
func TestEveryFunctionIsDecided(t *testing.T) {
	names, _ := recordedAll(t)
	require.Empty(t, check(names))
}

func TestPageIsCurrent(t *testing.T) {
	names, all := recordedAll(t)
	have, err := os.ReadFile(filepath.Join("..", "..", "..", pageFile))
	require.NoError(t, err)
	require.True(t, string(have) == page(names, all), "%s is not what the table and the hooks make: type go run ./tracer/hook/coverage",
		pageFile)
}

func TestNamesAreWrittenAsTheyAreRead(t *testing.T) {
	names, all := recordedAll(t)
	require.True(t, names.String() == recordedNames)
	seen := map[string]bool{}
	for _, f := range names {
		key := f.API.Key + " " + f.Name
		require.False(t, seen[key], key)
		seen[key] = true
		require.NotEmpty(t, f.Versions)
	}
	// A package that cannot be fetched any more is replaced by its record.
	declared := map[Package]map[*API][]Declaration{}
	for _, p := range all {
		declared[p] = names.of(p)
	}
	require.True(t, collect(all, declared).String() == recordedNames)
}

// TestVersions: what NVIDIA's release notes and the headers' own texts say about when functions came and went.
func TestVersions(t *testing.T) {
	names, all := recordedAll(t)
	for name, want := range map[string]string{
		"cuMemAlloc_v2": "", "cudaMallocAsync": "", "cudaMallocAsync_ptsz": "", "cuMulticastCreate": "since 12.1", "cuCtxCreate_v4": "since 12.5",
		"cudaThreadExit": "to 12.9", "cudaMemAdvise_v2": "12.2 to 12.9", "cuMulticastBindMem_v2": "since 13.1", "cudaMemGetMemPool": "since 13.0",
		"hipMemCreate": "", "zeMemPutIpcHandle": "since 1.20",
	} {
		at := slices.IndexFunc(names, func(f *Function) bool { return f.Name == name })
		require.GreaterOrEqual(t, at, 0, name)
		require.Equal(t, want, names[at].inVersions(all), name)
	}
}

func TestRanges(t *testing.T) {
	all := []string{"1", "2", "3", "4"}
	for text, want := range map[string][]string{"1": {"1"}, "4": {"4"}, "1-4": all, "2-3": {"2", "3"}, "1,3-4": {"1", "3", "4"},
		"1,3": {"1", "3"}} {
		got, err := fromRanges(text, all)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, ranges(want, all))
	}
	for _, text := range []string{"", "5", "2-1", "1-", "-", "1,,2"} {
		_, err := fromRanges(text, all)
		require.Error(t, err, text)
	}
}

func TestParseNamesRefuses(t *testing.T) {
	all, err := packages()
	require.NoError(t, err)
	for _, line := range []string{"driver", "driver cuMemAlloc", "other cuMemAlloc 11.8", "driver cuMemAlloc 99.9",
		"driver cuMemAlloc 11.8 memory more"} {
		_, err := parseNames(line, all)
		require.ErrorContains(t, err, strings.Fields(line)[0], line)
	}
}

// TestTableIsWhole: every group has what it needs, and names nothing twice and nothing that no header has.
func TestTableIsWhole(t *testing.T) {
	names, _ := recordedAll(t)
	for _, a := range apis {
		seen := map[string]bool{}
		for i := range groups {
			g := &groups[i]
			for name := range strings.FieldsSeq(a.Names(g)) {
				require.False(t, seen[name], "%s is in two groups", name)
				seen[name] = true
				isPattern := strings.ContainsAny(name, "*?[\\")
				require.True(t, !isPattern || g.Copies || g.Status == Other, "%s: no patterns for what looks like memory", name)
				require.True(t, slices.ContainsFunc(names, func(f *Function) bool {
					ok, err := path.Match(name, f.Base())
					require.NoError(t, err)
					return f.API == a && ok && f.group() == g
				}), "%s %s decides nothing", a.Title, name)
			}
		}
	}
	for i := range groups {
		g := &groups[i]
		require.Contains(t, []Status{Hooked, NotHooked, NotMemory, Other}, g.Status)
		require.Equal(t, g.Status == Other, g.Family == "", g.Reason)
		require.Equal(t, g.Status == Hooked, g.Reason == "", g.Family)
		require.True(t, g.Family == "" || slices.Contains(families, g.Family), g.Family)
		require.True(t, !g.Copies || g.Status == NotMemory)
		require.NotContains(t, g.Reason, "|")
	}
}

// TestPatternsDoNotOverlap: the order of the groups does not matter.
func TestPatternsDoNotOverlap(t *testing.T) {
	names, _ := recordedAll(t)
	for _, f := range names {
		var matching []string
		for i := range groups {
			for pattern := range strings.FieldsSeq(f.API.Names(&groups[i])) {
				if f.mayMatch(&groups[i], pattern) && pattern != f.Base() {
					matching = append(matching, pattern)
				}
			}
		}
		require.LessOrEqual(t, len(matching), 1, "%s: %v", f.Name, matching)
	}
}

// future is a function that a header of the future might declare.
func future(api int, d Declaration) *Function {
	return &Function{API: apis[api], Name: d.Name, Versions: []string{"99"}, Memory: MayBeMemory(d)}
}

// TestNewFunctionsAreFound: what is new does not slip through by the prefix of a family.
func TestNewFunctionsAreFound(t *testing.T) {
	names, _ := recordedAll(t)
	before := len(check(names))
	for want, functions := range map[string][]*Function{
		"looks like memory and is in no group": {
			future(0, Declaration{"cuMemAlloc_v3", nil}),
			future(0, Declaration{"cuMemAllocNew", nil}),
			future(0, Declaration{"cuStreamAllocScratch", nil}),
			future(0, Declaration{"cuGraphAddMemPoolNode", nil}),
			future(0, Declaration{"cuDeviceGrow", []string{"CUdeviceptr*", "size_t"}}),
			future(0, Declaration{"cuEventTake", []string{"CUmemoryPool"}}),
			future(1, Declaration{"cudaStreamScratch", []string{"void**", "size_t"}}),
			future(1, Declaration{"cudaFreeLater_ptsz", nil}),
			future(2, Declaration{"hipDeviceHeapGrow", nil}),
			future(3, Declaration{"zeDeviceShareMemoryExt", nil}),
		},
		"is in no group": {
			future(0, Declaration{"cuBrandNew", nil}), future(1, Declaration{"cudaBrandNew", nil}),
			future(2, Declaration{"hipBrandNew", nil}), future(3, Declaration{"zeBrandNew", nil}),
		},
		"is to be hooked": {future(0, Declaration{"cuMemPoolCreate_ptsz", nil}), future(2, Declaration{"hipMallocPitch_spt", nil})},
	} {
		for _, f := range functions {
			got := check(append(slices.Clone(names), f))
			require.Len(t, got, before+1, f.Name)
			require.True(t, slices.ContainsFunc(got, func(p string) bool {
				return strings.Contains(p, f.Name) && strings.Contains(p, want)
			}), "%s: %v", f.Name, got)
		}
	}
	for _, f := range []*Function{
		future(0, Declaration{"cuMemcpyEverywhere", []string{"CUdeviceptr"}}), future(0, Declaration{"cuStreamDance", []string{"CUstream"}}),
		future(1, Declaration{"cudaMemset4D_ptds", []string{"void*"}}), future(0, Declaration{"cuMemAdvise_ptsz", nil}),
	} {
		require.Len(t, check(append(slices.Clone(names), f)), before, f.Name)
	}
}

// TestHooksWithoutHeaderAreFound takes a hooked function away.
func TestHooksWithoutHeaderAreFound(t *testing.T) {
	names, _ := recordedAll(t)
	without := slices.DeleteFunc(slices.Clone(names), func(f *Function) bool { return f.Name == "cuMemAlloc_v2" })
	got := check(without)
	require.Len(t, got, len(check(names))+1)
	require.True(t, slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, "cuMemAlloc_v2, which no header declares") }))
}

// TestRuleKnowsTheHooks: the rule takes for memory whatever is hooked, but for the calls that choose a device.
func TestRuleKnowsTheHooks(t *testing.T) {
	names, _ := recordedAll(t)
	hooked := 0
	for _, f := range names {
		for _, r := range f.rows() {
			hooked++
			require.True(t, f.Memory || r.Program == hook.SetDevice, f.Name)
		}
	}
	require.Greater(t, hooked, 150)
}

func TestMayBeMemory(t *testing.T) {
	for _, d := range []Declaration{
		{"cuMemAlloc_v2", nil}, {"cudaHostRegister", nil}, {"cuIpcOpenMemHandle_v2", nil}, {"zeEventPoolGetIpcHandle", nil},
		{"cuX", []string{"CUdeviceptr*"}}, {"cuX", []string{"CUdeviceptr"}}, {"cudaX", []string{"int", "void**"}},
		{"hipX", []string{"hipDeviceptr_t"}},
		{"hipX", []string{"hipArray_t*"}}, {"zeX", []string{"ze_physical_mem_handle_t"}}, {"cuX", []string{"CUcontext*"}},
		{"cuX", []string{"CUmemGenericAllocationHandle"}}, {"cuDeviceReset", nil}, {"cudaThreadExit", nil}, {"cuCheckpointProcessRestore", nil},
	} {
		require.True(t, MayBeMemory(d), "%v", d)
	}
	for _, d := range []Declaration{
		{"cuStreamCreate", []string{"CUstream*", "unsigned int"}}, {"cudaGetDevice", []string{"int*"}}, {"cuEventQuery", []string{"CUevent"}},
		{"hipStreamSynchronize", []string{"hipStream_t"}}, {"zeKernelSetGroupSize", []string{"ze_kernel_handle_t"}},
		{"cudaX", []string{"const void*", "size_t"}},
	} {
		require.False(t, MayBeMemory(d), "%v", d)
	}
}
