// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// header has what makes the headers of CUDA and HIP hard to read: macros that rename functions, second copies of functions,
// older forms that only the library itself sees, comments in odd places, attributes, defaults of C++.
const header = `
#ifndef HEADER
#define HEADER
#include <stddef.h>
#if defined(__API_VERSION_INTERNAL) || defined(PER_THREAD)
    #define __CUDA_API_PTDS(api) api ## _ptds
    #define __CUDA_API_PTSZ(api) api ## _ptsz
#else
    #define __CUDA_API_PTDS(api) api
    #define __CUDA_API_PTSZ(api) api
#endif
#define CUDAAPI
#define CU_DEPRECATED __attribute__((deprecated("do not")))
#define cuMemAlloc             cuMemAlloc_v2
#define cuMemCopy              __CUDA_API_PTDS(cuMemCopy_v2) /* a comment
  over two lines */
#define cuOld                  cuNew
#define cuNew                  __CUDA_API_PTSZ(cuNew_v3)
#if defined(PER_THREAD)
    #define cuMemFreeAsync     __CUDA_API_PTSZ(cuMemFreeAsync)
#endif
#ifdef __cplusplus
extern "C" {
#endif
/* CUresult CUDAAPI cuInComment(int a); */ // CUresult cuInLineComment(int a);
typedef enum { CU_OK = 0 } CUresult;
typedef struct CUstream_st *CUstream; typedef unsigned long long CUdeviceptr; typedef unsigned int CUdeviceptr_v1;
typedef void (*CUcallback)(CUstream stream, void *data); typedef CUresult (CUDAAPI *PFN_cuPointer)(CUdeviceptr *p);
struct cuParams { CUdeviceptr dst; size_t (*cuMember)(int); };
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytes);
extern CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr /* address */, CUstream hStream);
CU_DEPRECATED CUresult CUDAAPI
cuMemCopy(
    CUdeviceptr dst,   ///< destination
    const void *src,
    size_t n
    ) __attribute__((nonnull));
CUresult CUDAAPI cuOld(struct cuParams *params, const CUresult how[]);
CUresult cuNothing(void); const char *cuErrorName(CUresult r); CUresult \
cuContinued(int);
static inline CUresult cuInline(int x) { if (x) return cuNothing(); CUresult r = cuContinued(x); return r; }
CUresult CUDAAPI cuCallback(CUstream s, CUresult (*f)(int, void **), void **user);
#if defined(__API_VERSION_INTERNAL)
    #undef cuMemAlloc
    CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytes);
#endif
#ifdef __cplusplus
}
#endif
#endif
`

// TestScanAgainstCompiler compares with what gcc finds declared (-aux-info), with and without each of the settings.
func TestScanAgainstCompiler(t *testing.T) {
	want := map[string]bool{}
	for _, settings := range [][]string{nil, {"-DPER_THREAD"}, {"-D__API_VERSION_INTERNAL"}, {"-DPER_THREAD", "-D__API_VERSION_INTERNAL"}} {
		for _, name := range compiled(t, header, settings...) {
			want[name] = true
		}
	}
	got := map[string]bool{}
	for _, d := range Scan(header) {
		require.False(t, got[d.Name], "%s twice", d.Name)
		got[d.Name] = true
	}
	require.Equal(t, want, got)
	require.Len(t, got, 12)
	for _, name := range []string{"cuMemAlloc", "cuMemAlloc_v2", "cuMemCopy_v2", "cuMemCopy_v2_ptds", "cuMemFreeAsync_ptsz", "cuNew_v3_ptsz"} {
		require.True(t, got[name], name)
	}
}

// compiled lists the functions that gcc finds declared, without those that are defined.
func compiled(t *testing.T, source string, settings ...string) []string {
	t.Helper()
	dir := t.TempDir()
	file, info := filepath.Join(dir, "header.c"), filepath.Join(dir, "info")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	out, err := exec.Command("gcc", append(settings, "-w", "-c", "-o", filepath.Join(dir, "header.o"), "-aux-info", info,
		file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(info)
	require.NoError(t, err)
	var names []string
	// /* header.c:12:NC */ extern CUresult cuFoo (int);   the second letter is C for a declaration, F for a definition
	for _, m := range regexp.MustCompile(`(?m)^/\* \S*header\.c:\d+:.C \*/ .*?\b(cu\w+) \(`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	return names
}

func TestScanParameters(t *testing.T) {
	for declaration, want := range map[string]string{
		"CUresult cuF(void);": "",
		"CUresult cuF();":     "",
		"CUresult cuF(CUdeviceptr *dptr, size_t bytesize);":                          "CUdeviceptr*|size_t",
		"cudaError_t cudaF(void **p, const struct cudaPos *pos, enum cudaKind k);":   "void**|const cudaPos*|cudaKind",
		"cudaError_t cudaF(void** a, unsigned int flags = cudaMemAttachGlobal);":     "void**|unsigned int",
		"hipError_t hipF(hipArray_t* array, size_t height __dparm(0), int i = 0);":   "hipArray_t*|size_t|int",
		"cudaError_t cudaF(cudaStream_t s __dv(0), void *const *args);":              "cudaStream_t|void* const*",
		"CUresult cuF(int, CUdeviceptr);":                                            "int|CUdeviceptr",
		"ZE_APIEXPORT ze_result_t ZE_APICALL zeF(ze_x_handle_t h, const void* p);":   "ze_x_handle_t|const void*",
		"DEPRECATED(\"use, (another)\") hipError_t hipF(hipFunction_t f, void** p);": "hipFunction_t|void**",
	} {
		got := Scan(declaration)
		require.Len(t, got, 1, declaration)
		require.Equal(t, want, strings.Join(got[0].Params, "|"), declaration)
	}
}

func TestScanFindsNothing(t *testing.T) {
	for _, text := range []string{
		"", ";", "cuF(1);", "return cuF(1);", "x = cuF(1);", "CUresult r = cuF(1);", "typedef CUresult cuF(int);", "CUresult cuF(int) {",
		"CUresult cuF;", "CUresult cuF(int", "/* CUresult cuF(int);", "// CUresult cuF(int);", "#define cuF(x) CUresult cuG(x);",
		"#define X CUresult cuF(int);", "CUresult (*cuF)(int);", "CUresult custom(int);", "int zero(int);",
	} {
		require.Empty(t, Scan(text), text)
	}
}

// TestScanSurvivesLoops: names that stand for each other end somewhere.
func TestScanSurvivesLoops(t *testing.T) {
	got := Scan("#define cuA cuB\n#define cuB cuA\nCUresult cuA(int);\n")
	require.Len(t, got, 1)
}

func FuzzScan(f *testing.F) {
	f.Add(header)
	f.Add("#define cuA __X_PTSZ(cuA)\nCUresult cuA(int, void **p = (0, 1));")
	f.Add("a\\\r\n\"/* x")
	f.Fuzz(func(t *testing.T, text string) {
		var names []string
		for _, d := range Scan(text) {
			require.Regexp(t, function, d.Name)
			names = append(names, d.Name)
		}
		slices.Sort(names)
		require.Len(t, slices.Compact(slices.Clone(names)), len(names))
	})
}
