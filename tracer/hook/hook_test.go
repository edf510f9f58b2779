// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/internal/elftest"
)

func TestMatches(t *testing.T) {
	for file, want := range map[string]*Library{
		"/site-packages/torch/lib/libc10.so":                                  Torch,
		"/site-packages/torch.libs/libc10-a1b2c3d4.so":                        Torch,
		"/usr/lib/x86_64-linux-gnu/libc10.so.2.6":                             Torch,
		"/site-packages/torch/lib/libc10_cuda.so":                             nil,
		"/site-packages/torch/lib/libc10_hip.so":                              nil,
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1":                              Driver,
		"/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06":                      Driver,
		"/usr/lib/wsl/lib/libcuda.so":                                         Driver,
		"/usr/lib/x86_64-linux-gnu/libcudadebugger.so.1":                      nil,
		"/site-packages/cupy/cuda/memory.cpython-311-x86_64-linux-gnu.so":     CuPy,
		"cupy/cuda/memory.cpython-313-x86_64-linux-gnu.so":                    CuPy,
		"/site-packages/rmm/memory.cpython-311-x86_64-linux-gnu.so":           nil,
		"/site-packages/cupy/cuda/memory_hook.cpython-311.so":                 nil,
		"/site-packages/librmm/lib64/librmm.so":                               RMM,
		"/site-packages/rmm/librmm/_torch_allocator.so":                       RMM,
		"/site-packages/other/_torch_allocator.so":                            nil,
		"/opt/libcudart.so.12":                                                Runtime,
		"/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12":              Runtime,
		"/site-packages/torch/lib/libcudart-e409450e.so.11.0":                 Runtime,
		"/site-packages/cupy_cuda12x.libs/libcudart.3fc2a6e8.so.13":           Runtime,
		"/usr/lib/libcudart_static.a":                                         nil,
		"/usr/lib/libcudnn.so.9":                                              nil,
		"/usr/lib/libc.so.6":                                                  nil,
		"[vdso]":                                                              nil,
		"":                                                                    nil,
		"/libcuda.so.1/other":                                                 nil,
		"/usr/lib/python3/site-packages/libc10.so/libtorch_cpu.so":            nil,
		"/site-packages/torch/lib/libtorch_cuda.so":                           nil,
		"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.525.147.05.orig": Driver,
	} {
		var got *Library
		for _, l := range Libraries {
			if l.Matches(file) {
				require.Nil(t, got, "%s matches two libraries", file)
				got = l
			}
		}
		require.Equal(t, want, got, file)
	}
}

func TestLibrariesAreWhole(t *testing.T) {
	for _, l := range Libraries {
		require.NotEmpty(t, l.Name)
		for _, g := range l.Globs {
			_, err := filepath.Match(g, "x")
			require.NoError(t, err, g)
		}
	}
	for i := range Rows {
		require.Equal(t, Rows[i].Program != Mark, slices.Contains(Libraries, Rows[i].Library), Rows[i].Symbol)
	}
}

// TestRowsAreValid checks what the kernel's programs take for granted of a row.
func TestRowsAreValid(t *testing.T) {
	for i := range Rows {
		r := &Rows[i]
		t.Run(r.Library.Name+" "+r.Symbol+r.Suffix, func(t *testing.T) {
			for _, a := range []Arg{r.Pointer, r.Size, r.Allocated, r.Reserved, r.Device} {
				require.True(t, a < 6 || a == None, "argument %d is in no register", a)
			}
			require.True(t, r.Layer >= event.LayerAllocator && r.Layer <= event.LayerHolder)
			require.Equal(t, r.Library == Torch || r.Library == Autograd || r.Allocator != allocator.Torch, r.Layer == event.LayerAllocator)
			switch r.Program {
			case TorchReport:
				require.NotEqual(t, None, r.Pointer)
				require.NotEqual(t, None, r.Size)
				require.NotEqual(t, None, r.Device)
			case TorchOOM:
				require.Equal(t, event.KindOutOfMemory, r.Kind)
				require.NotEqual(t, None, r.Size)
			case Mark:
				require.Equal(t, event.KindMark, r.Kind)
				require.Equal(t, []Arg{None, None, None, None}, []Arg{r.Size, r.Allocated, r.Reserved, r.Device})
			case Report:
				checkReport(t, r)
			case Request:
				require.Zero(t, r.Kind, "it makes no event")
				require.Len(t, r.Dims, 1)
				require.Equal(t, FromArg, r.Dims[0].From)
			case Point:
				checkPoint(t, r)
			case Call:
				checkCall(t, r)
			case SetContext, SetDevice:
				require.Zero(t, r.Kind)
				require.Equal(t, event.ObjectContext, r.Object)
			default:
				t.Fatalf("program %d is not known", r.Program)
			}
			if r.Prefix {
				require.NotEmpty(t, r.Title, "a mangled name needs one for people")
			}
		})
	}
}

// checkReport: all that a report says is in its arguments.
func checkReport(t *testing.T, r *Row) {
	require.Contains(t, []event.Kind{event.KindAlloc, event.KindFree}, r.Kind)
	require.NotZero(t, r.Dims)
	require.Less(t, r.Requested, len(r.Dims))
	for _, o := range append([]Operand{r.Addr, r.Handle, r.Guard}, r.Dims...) {
		require.NotContains(t, []From{FromOut, FromReturn}, o.From)
		require.Less(t, o.Arg, uint8(6), "it is read without a look at the stack")
	}
}

// checkPoint: operands are numbers of the probe's arguments; the note of each place says where they are.
func checkPoint(t *testing.T, r *Row) {
	require.Contains(t, []event.Kind{event.KindAlloc, event.KindFree}, r.Kind)
	require.NotEmpty(t, r.Library.Provider)
	require.Equal(t, r.Kind == event.KindAlloc, len(r.Dims) > 0)
	require.Zero(t, r.Guard, "the rows of a place would have to be joined")
	for _, o := range append([]Operand{r.Addr}, r.Dims...) {
		require.Equal(t, FromArg, o.From)
	}
}

func checkCall(t *testing.T, r *Row) {
	require.NotZero(t, r.Kind)
	require.NotZero(t, r.DeviceType)
	require.LessOrEqual(t, len(r.Dims), MaxDims)
	for _, o := range append([]Operand{r.Addr, r.Handle, r.Ordinal, r.Guard}, r.Dims...) {
		require.Equal(t, o.From >= FromField, o.From == FromOut || o.Offset != 0 || o.From == FromField || o.From == FromField32)
		require.Less(t, o.Arg, uint8(16))
	}
	require.True(t, r.Bytes == nil || len(r.Dims) > 0)
	switch r.Kind {
	case event.KindAlloc:
		require.NotEqual(t, FromNone, r.Addr.From, "nobody can free what has no address")
	case event.KindFree:
		require.True(t, r.Addr.From != FromNone || r.Object == event.ObjectContext && r.Ordinal.From != FromNone)
		require.NotEqual(t, FromOut, r.Addr.From, "it is applied at its entry")
		require.Empty(t, r.Dims)
	case event.KindMap:
		require.NotEqual(t, FromNone, r.Handle.From)
	case event.KindReset:
		require.Equal(t, event.ObjectContext, r.Object)
	}
}

// signatures are the reports as PyTorch's versions export them, mangled (c10/core/Allocator.h of each).
var signatures = []struct {
	versions, symbol string
}{
	{"1.6 to 1.9", "_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE"},
	{"1.10 to 1.13", "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE"},
	{"2.0 on", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"},
	{"1.12 to 1.13", "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE"},
	{"2.0 on", "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"},
}

// TestMarkArguments: the second argument of the function that opens a range is its name, in every ABI.
func TestMarkArguments(t *testing.T) {
	named := 0
	for i := range Rows {
		r := &Rows[i]
		if r.Program != Mark {
			continue
		}
		types := argumentTypes(t, r.Symbol)
		if r.Pointer == None {
			require.Contains(t, types[0], "Edge", r.Symbol)
			continue
		}
		named++
		require.Regexp(t, `^std::(__cxx11::)?(basic_string<char|string const&)$`, types[0], "the first argument is the place of the result")
		require.EqualValues(t, 1, r.Pointer)
	}
	require.Equal(t, 4, named)
}

// TestTorchArguments compares the rows with the signatures, as c++filt spells them out.
func TestTorchArguments(t *testing.T) {
	for _, s := range signatures {
		t.Run(s.symbol, func(t *testing.T) {
			row := only(t, Torch, s.symbol)
			types := argumentTypes(t, s.symbol)
			require.Equal(t, "c10::Device", types[row.Device])
			require.Equal(t, "long", types[row.Size])
			if row.Program == TorchReport {
				require.Equal(t, "void*", types[row.Pointer])
			}
			used := []Arg{row.Device, row.Size, row.Pointer}
			for _, total := range []Arg{row.Allocated, row.Reserved} {
				if total != None {
					require.Contains(t, []string{"long", "unsigned long"}, types[total])
					require.NotContains(t, used, total)
					used = append(used, total)
				}
			}
			require.Equal(t, len(types) >= 4, row.Allocated != None && row.Reserved != None, "totals are there since 1.10")
		})
	}
}

// only finds the one row that serves a symbol.
func only(t *testing.T, l *Library, symbol string) *Row {
	t.Helper()
	var out *Row
	for i := range Rows {
		if Rows[i].Library == l && Rows[i].MatchesName(symbol) {
			require.Nil(t, out, "two rows serve %s", symbol)
			out = &Rows[i]
		}
	}
	require.NotNil(t, out, "no row serves %s", symbol)
	return out
}

func argumentTypes(t *testing.T, symbol string) []string {
	t.Helper()
	out, err := exec.Command("c++filt", symbol).Output()
	require.NoError(t, err)
	_, rest, ok := strings.Cut(strings.TrimSpace(string(out)), "(")
	require.True(t, ok, "%s", out)
	return strings.Split(strings.TrimSuffix(rest, ")"), ", ")
}

func TestMatchesNameRefuses(t *testing.T) {
	for _, symbol := range []string{
		"", "_ZN3c10", "_ZN3c1027reportMemoryUsageToProfilerE", "_ZN3c1027reportMemoryUsageToProfilerEPvlmm",
		"_ZN3c1027reportMemoryUsageToProfilerEPvldNS_6DeviceEi", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE.cold",
		"cuMemAlloc", "cuMemAlloc_v2_ptsz", "cudaMallocHosts", "cudaFreeArrays", "cuMemFree",
	} {
		for i := range Rows {
			require.False(t, Rows[i].MatchesName(symbol), "%q is served by %s", symbol, Rows[i].Symbol)
		}
	}
}

func TestName(t *testing.T) {
	for symbol, want := range map[string]string{"cuMemAlloc_v2": "cuMemAlloc", "cuMemFree_v2": "cuMemFree", "cuCtxCreate_v4": "cuCtxCreate",
		"cuMemAllocAsync_ptsz": "cuMemAllocAsync_ptsz", "cudaMalloc": "cudaMalloc", "cudaFree": "cudaFree"} {
		for _, l := range []*Library{Driver, Runtime} {
			for i := range Rows {
				if Rows[i].Library == l && Rows[i].Symbol == symbol {
					require.Equal(t, want, Rows[i].Name())
					want = ""
				}
			}
		}
		require.Empty(t, want, "no row for %s", symbol)
	}
	require.Empty(t, only(t, Torch, signatures[2].symbol).Name(), "the torch layer has no calls")
}

// TestLibrariesDefineRows looks for every function in the libraries that the tests run on: PyTorch's own, and the stand-in
// for CUDA. Of the torch rows, one signature is there, of each report.
func TestLibrariesDefineRows(t *testing.T) {
	torch := exported(t, elftest.Setup(t, "site"), "torch", "lib", "libc10.so")
	var reports, ooms []string
	for symbol := range torch {
		for i := range Rows {
			if r := &Rows[i]; r.Library == Torch && r.MatchesName(symbol) {
				if r.Program == TorchReport {
					reports = append(reports, symbol)
				} else {
					ooms = append(ooms, symbol)
				}
			}
		}
	}
	require.Len(t, reports, 1)
	require.Len(t, ooms, 1)

	standin := elftest.Setup(t, "standin")
	for l, pattern := range map[*Library]string{
		Driver: "libcuda.so.1", Runtime: "libcudart.so.*", HIP: "libamdhip64.so.*", LevelZero: "libze_loader.so.*",
	} {
		files, err := filepath.Glob(filepath.Join(standin, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		require.True(t, l.Matches(files[0]), files[0])
		symbols := exported(t, files[0])
		for i := range Rows {
			if Rows[i].Library == l {
				require.Contains(t, symbols, Rows[i].Symbol)
			}
		}
	}
}

// exported lists the functions that a library defines, read with the standard library.
func exported(t *testing.T, path ...string) map[string]bool {
	t.Helper()
	f, err := elf.Open(filepath.Join(path...))
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	out := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			out[s.Name] = true
		}
	}
	return out
}
