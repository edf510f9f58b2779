// SPDX-License-Identifier: Apache-2.0

package macho

import (
	"bytes"
	"crypto/sha256"
	"debug/macho"
	"encoding/binary"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// made is a Mach-O file with a signature.
type made struct {
	cpu, subtype uint32
	segment      string
	flags        uint32
	entitlements string
	unsigned     bool
}

func (m made) bytes() []byte {
	le, be := binary.LittleEndian, binary.BigEndian
	directory := be.AppendUint32(nil, magicCodeDirectory)
	for _, v := range []uint32{44, 0x20400, m.flags, 0, 0, 0, 0, 0, 0, 0} {
		directory = be.AppendUint32(directory, v)
	}
	plist := be.AppendUint32(nil, magicEntitlements)
	plist = be.AppendUint32(plist, uint32(8+len(m.entitlements)))
	plist = append(plist, m.entitlements...)
	plist = append(plist, make([]byte, max(0, 16-len(plist)))...)
	blob := be.AppendUint32(nil, magicSuperBlob)
	for _, v := range []uint32{uint32(28 + len(directory) + len(plist)), 2, 0, 28, 5, uint32(28 + len(directory))} {
		blob = be.AppendUint32(blob, v)
	}
	blob = append(append(blob, directory...), plist...)

	segment := make([]byte, 72)
	le.PutUint32(segment, 0x19)
	le.PutUint32(segment[4:], 72)
	copy(segment[8:24], m.segment)
	signature := le.AppendUint32(nil, loadCodeSignature)
	for _, v := range []uint32{16, 32 + 72 + 16, uint32(len(blob))} {
		signature = le.AppendUint32(signature, v)
	}
	n := uint32(2)
	if m.unsigned {
		n = 1
	}
	out := []byte{}
	for _, v := range []uint32{0xfeedfacf, m.cpu, m.subtype, 2, n, 72 + 16*(n-1), 0, 0} {
		out = le.AppendUint32(out, v)
	}
	return append(append(append(out, segment...), signature...), blob...)
}

const (
	cpuX86 = 0x01000007
	cpuARM = 0x0100000c
)

func allow(names ...string) string {
	out := "<plist><dict>"
	for _, n := range names {
		out += "<key>" + n + "</key>\n\t<true/>"
	}
	return out + "</dict></plist>"
}

// TestVerdicts: what macOS lets in, by the rules that docs/use/macos.md has with their sources.
func TestVerdicts(t *testing.T) {
	for name, tt := range map[string]struct {
		made           made
		path           string
		insert, dtrace string // of why not; empty: it works
	}{
		"homebrew":   {made: made{cpu: cpuARM, flags: flagAdHoc}, path: "/opt/homebrew/bin/python3.12"},
		"not signed": {made: made{cpu: cpuX86, unsigned: true}, path: "/usr/local/bin/python3", dtrace: "Rosetta"},
		"of macOS":   {made: made{cpu: cpuARM, subtype: 2}, path: "/usr/bin/python3", insert: "of macOS itself", dtrace: "of macOS itself"},
		"hardened":   {made: made{cpu: cpuARM, flags: flagRuntime}, path: "/p", insert: "hardened", dtrace: "get-task-allow"},
		"half hardened": {made: made{cpu: cpuARM, flags: flagRuntime, entitlements: allow(AllowLibraries)}, path: "/p", insert: "hardened",
			dtrace: "hardened"},
		"allowed": {made: made{cpu: cpuARM, flags: flagRuntime, entitlements: allow(AllowLibraries, AllowVariables, AllowTaskForPorts)},
			path: "/p"},
		"denied": {
			made: made{cpu: cpuARM, flags: flagRuntime, entitlements: strings.ReplaceAll(allow(AllowLibraries, AllowVariables), "true", "false")},
			path: "/p", insert: "hardened", dtrace: "hardened",
		},
		"restricted": {made: made{cpu: cpuARM, flags: flagRestrict}, path: "/p", insert: "restricted", dtrace: "restricted"},
		"segment":    {made: made{cpu: cpuARM, segment: "__RESTRICT"}, path: "/p", insert: "restricted", dtrace: "restricted"},
		"arm64e":     {made: made{cpu: cpuARM, subtype: 2}, path: "/p", insert: "for arm64e only"},
	} {
		p, err := Read(bytes.NewReader(tt.made.bytes()))
		require.NoError(t, err, name)
		p.Path, p.System = tt.path, SystemFolder(tt.path)
		for verdict, want := range map[Verdict]string{p.Insert(): tt.insert, p.DTrace(true): tt.dtrace} {
			require.Equal(t, want == "", verdict.Works, "%s: %s", name, verdict.Why)
			require.Contains(t, verdict.Why, want, name)
		}
	}
	p, err := Read(bytes.NewReader(made{cpu: cpuX86}.bytes()))
	require.NoError(t, err)
	require.True(t, p.DTrace(false).Works, "on a Mac of Intel's")
}

func TestRefused(t *testing.T) {
	_, err := Read(bytes.NewReader([]byte("#!/bin/sh\n")))
	require.ErrorIs(t, err, ErrNotMachO)
	_, err = Open(t.TempDir() + "/none")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open("/proc/self/exe")
	require.ErrorIs(t, err, ErrNotMachO)
}

// FuzzSignature: no signature makes it panic.
func FuzzSignature(f *testing.F) {
	b := made{cpu: cpuARM, flags: flagRuntime, entitlements: allow(AllowLibraries)}.bytes()
	f.Add(b[32+72+16:])
	f.Fuzz(func(_ *testing.T, b []byte) {
		p := &Program{}
		p.sign(b)
		p.Insert()
		p.DTrace(true)
	})
}

const library = "../shim/libgputrace.dylib"

// TestLibrary: the library that ships is what dyld of macOS 12 and later takes: both processors, Metal weakly, only names that our
// lists have, no thread variables, no chained fixups, two replacements, and on arm64 a signature whose hashes are right.
func TestLibrary(t *testing.T) {
	fat, err := macho.OpenFat(library)
	require.NoError(t, err)
	defer fat.Close()
	require.Len(t, fat.Arches, 2)
	names := sdkNames(t)
	for i := range fat.Arches {
		f := fat.Arches[i].File
		require.Equal(t, macho.TypeDylib, f.Type)
		imported, err := f.ImportedSymbols()
		require.NoError(t, err)
		for _, name := range imported {
			require.Contains(t, names, name)
		}
		require.EqualValues(t, 2*16, f.Section("__interpose").Size)
		require.Nil(t, f.Section("__thread_vars"))
		commands := map[uint32][]byte{}
		for _, l := range f.Loads {
			commands[f.ByteOrder.Uint32(l.Raw())] = l.Raw()
		}
		require.NotContains(t, commands, uint32(0x80000034), "LC_DYLD_CHAINED_FIXUPS")
		require.Contains(t, string(commands[0x80000018]), "Metal.framework", "LC_LOAD_WEAK_DYLIB")
		require.EqualValues(t, 12<<16, f.ByteOrder.Uint32(commands[0x32][12:]), "LC_BUILD_VERSION: minos")
		if f.Cpu == macho.CpuArm64 {
			checkHashes(t, fat.Arches[i].FatArchHeader, commands[loadCodeSignature])
		}
	}
	p, err := Open(library)
	require.NoError(t, err)
	require.True(t, p.AdHoc)
	require.False(t, p.Hardened)
	require.Equal(t, []string{"arm64", "x86_64"}, slices.Sorted(slices.Values(p.Archs)))
}

// sdkNames are the symbols of our lists.
func sdkNames(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range []string{"usr/lib/libSystem.tbd", "usr/lib/libobjc.tbd", "System/Library/Frameworks/Metal.framework/Metal.tbd"} {
		b, err := os.ReadFile("../shim/sdk/" + name)
		require.NoError(t, err)
		_, list, ok := strings.Cut(string(b), "symbols:")
		require.True(t, ok)
		out = append(out, regexp.MustCompile(`[\w$]+`).FindAllString(list, -1)...)
	}
	return out
}

// checkHashes computes the hash of each page (cs_blobs.h, CS_CodeDirectory).
func checkHashes(t *testing.T, header macho.FatArchHeader, command []byte) {
	t.Helper()
	all, err := os.ReadFile(library)
	require.NoError(t, err)
	b := all[header.Offset : header.Offset+header.Size]
	le, be := binary.LittleEndian, binary.BigEndian
	signature := b[le.Uint32(command[8:]):]
	directory := signature[be.Uint32(signature[16:]):]
	require.EqualValues(t, magicCodeDirectory, be.Uint32(directory))
	require.EqualValues(t, 0x20002, be.Uint32(directory[12:]), "ad hoc, signed by the linker")
	hashes, slots, limit := be.Uint32(directory[16:]), be.Uint32(directory[28:]), be.Uint32(directory[32:])
	page := uint32(1) << directory[39]
	require.Greater(t, slots, uint32(5))
	for i := range slots {
		sum := sha256.Sum256(b[i*page : min((i+1)*page, limit)])
		at := hashes + i*sha256.Size
		require.Equal(t, sum[:], directory[at:at+sha256.Size], "page %d", i)
	}
}

// FuzzSegments: no header and no load commands make it panic, and no segment is of none of them.
func FuzzSegments(f *testing.F) {
	f.Add(make([]byte, HeaderBytes), make([]byte, segmentBytes))
	f.Fuzz(func(t *testing.T, header, commands []byte) {
		if n, ok := CommandBytes(header); ok {
			require.LessOrEqual(t, n, MaxCommands)
			require.LessOrEqual(t, len(Segments(header, commands)), len(commands)/segmentBytes)
		}
	})
}

// TestSegments: those of the library that ships are as debug/macho has them.
func TestSegments(t *testing.T) {
	fat, err := macho.OpenFat("../shim/libgputrace.dylib")
	require.NoError(t, err)
	defer fat.Close()
	for i := range fat.Arches {
		a := &fat.Arches[i]
		raw := make([]byte, a.Size)
		file, err := os.Open("../shim/libgputrace.dylib")
		require.NoError(t, err)
		_, err = file.ReadAt(raw, int64(a.Offset))
		require.NoError(t, err)
		require.NoError(t, file.Close())
		n, ok := CommandBytes(raw)
		require.True(t, ok)
		segments := Segments(raw[:HeaderBytes], raw[HeaderBytes:HeaderBytes+n])
		seen := 0
		for _, l := range a.Loads {
			want, ok := l.(*macho.Segment)
			if !ok {
				continue
			}
			have := segments[seen]
			require.Equal(t, Segment{want.Name, want.Addr, want.Memsz, want.Prot&2 != 0 && want.Flag&0x10 == 0, want.Prot&4 != 0}, have)
			seen++
		}
		require.Len(t, segments, seen)
		require.Greater(t, seen, 2)
	}
}
