// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPackages: the versions that were asked for are there, oldest first, each pinned.
func TestPackages(t *testing.T) {
	all, err := packages()
	require.NoError(t, err)
	for _, version := range []string{"11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0"} {
		require.Contains(t, apis[0].versions(all), version)
	}
	for _, a := range apis {
		versions := a.versions(all)
		require.NotEmpty(t, versions, a.Title)
		require.True(t, slices.IsSortedFunc(versions, byVersion), "%s: %v", a.Title, versions)
		require.Len(t, slices.Compact(slices.Clone(versions)), len(versions), a.Title)
	}
	digests := map[string]bool{}
	for _, p := range all {
		digest, err := hex.DecodeString(p.SHA256)
		require.NoError(t, err)
		require.Len(t, digest, sha256.Size)
		require.False(t, digests[p.SHA256], "%s %s twice", p.Name, p.Release)
		digests[p.SHA256] = true
		require.True(t, strings.HasPrefix(p.Release, p.Version+"."), "%s is not of %s", p.Release, p.Version)
	}
}

func byVersion(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		return m - n
	})
}

const (
	driverHeader  = "CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n);\nCUresult cuFuture(int);"
	runtimeHeader = "cudaError_t cudaMalloc(void **p, size_t n);\ncudaError_t cudaNothing(int);\ncudaError_t cudaWGLGetDevice(int);"
	runtimeSource = "void cudaMalloc(void) {} void cudaNothing(void) {} void cudaProfilerStart(void) {} void __cudaHidden(void) {}"
)

// library compiles a libcudart.
func library(t *testing.T, source string) []byte {
	t.Helper()
	dir := t.TempDir()
	c, so := filepath.Join(dir, "r.c"), filepath.Join(dir, "r.so")
	require.NoError(t, os.WriteFile(c, []byte(source), 0o600))
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", so, c).CombinedOutput()
	require.NoError(t, err, "%s", out)
	data, err := os.ReadFile(so)
	require.NoError(t, err)
	return data
}

// wheel writes a wheel into dir and returns the row of headers.txt for it.
func wheel(t *testing.T, dir string, files map[string]string) Package {
	t.Helper()
	name := filepath.Join(dir, "some_package-1.2.3-py3-none-any.whl")
	f, err := os.Create(name)
	require.NoError(t, err)
	w := zip.NewWriter(f)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		entry, err := w.Create(file)
		require.NoError(t, err)
		_, err = entry.Write([]byte(files[file]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return Package{"cuda", "1.2", "pypi", "some-package", "1.2.3", digest(t, name)}
}

func digest(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func cudaFiles(t *testing.T) map[string]string {
	return map[string]string{
		"nvidia/include/cuda.h": driverHeader, "nvidia/include/cuda_runtime_api.h": runtimeHeader,
		"nvidia/lib/libcudart.so.12": string(library(t, runtimeSource)),
		"nvidia/include/other.h":     "CUresult cuNotRead(int);", "nvidia/lib/libcudart_static.a": "no library",
	}
}

func TestReadWheel(t *testing.T) {
	dir := t.TempDir()
	p := wheel(t, dir, cudaFiles(t))
	file, err := p.find(dir)
	require.NoError(t, err)
	got, err := p.declared(file)
	require.NoError(t, err)
	names := map[string][]string{}
	for _, f := range collect([]Package{p}, map[Package]map[*API][]Declaration{p: got}) {
		require.Equal(t, []string{"1.2"}, f.Versions)
		names[f.API.Key] = append(names[f.API.Key], f.Name)
	}
	require.Equal(t, map[string][]string{
		"driver":  {"cuFuture", "cuMemAlloc_v2"},
		"runtime": {"cudaMalloc", "cudaNothing", "cudaProfilerStart", "cudaWGLGetDevice"},
	}, names)
}

// TestWrongPackages: what is not as it should be is an error that says what.
func TestWrongPackages(t *testing.T) {
	for name, c := range map[string]struct {
		change func(map[string]string)
		want   string
	}{
		"no header":            {func(f map[string]string) { delete(f, "nvidia/include/cuda.h") }, "CUDA driver: no declarations found"},
		"empty header":         {func(f map[string]string) { f["nvidia/include/cuda.h"] = "int x;" }, "CUDA driver: no declarations found"},
		"no library":           {func(f map[string]string) { delete(f, "nvidia/lib/libcudart.so.12") }, "no libcudart.so.* found"},
		"library that is none": {func(f map[string]string) { f["nvidia/lib/libcudart.so.12"] = "ELF" }, "libcudart.so.12: "},
		"declared, not exported": {func(f map[string]string) { f["nvidia/include/cuda_runtime_api.h"] += "cudaError_t cudaGone(int);" },
			"cudaGone is declared and not exported"},
		"exported, not declared": {func(f map[string]string) { f["nvidia/include/cuda_runtime_api.h"] = "cudaError_t cudaMalloc(int);" },
			"cudaNothing is exported and not declared"},
		"no files": {func(f map[string]string) { clear(f) }, "no files"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, files := t.TempDir(), cudaFiles(t)
			c.change(files)
			p := wheel(t, dir, files)
			file, err := p.find(dir)
			require.NoError(t, err)
			_, err = p.declared(file)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestPackageMustBeThePinnedOne(t *testing.T) {
	dir := t.TempDir()
	p := wheel(t, dir, cudaFiles(t))
	file, err := p.find(dir)
	require.NoError(t, err)
	p.SHA256 = strings.Repeat("0", 64)
	_, err = p.declared(file)
	require.ErrorContains(t, err, "fetch it again")
	p.Release = "1.2.4"
	_, err = p.find(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestReadDeb(t *testing.T) {
	dir, tree := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"DEBIAN/control":                   "Package: libze-dev\nVersion: 1.2.3-4\nArchitecture: amd64\nMaintainer: nobody\nDescription: test\n",
		"usr/include/level_zero/ze_api.h":  "ze_result_t ZE_APICALL zeMemFree(ze_context_handle_t c, void *p);",
		"usr/include/level_zero/zet_api.h": "ze_result_t ZE_APICALL zeOther(int);",
	} {
		file := filepath.Join(tree, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	name := filepath.Join(dir, "libze-dev_1.2.3-4_amd64.deb")
	out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", tree, name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	p := Package{"levelzero", "1.2", "some-suite", "libze-dev", "1.2.3-4", digest(t, name)}
	file, err := p.find(dir)
	require.NoError(t, err)
	got, err := p.declared(file)
	require.NoError(t, err)
	require.Equal(t, map[*API][]Declaration{apis[3]: {{"zeMemFree", []string{"ze_context_handle_t", "void*"}}}}, got)
}
