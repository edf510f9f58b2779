// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// probe makes a probe of a row without a file behind it.
func probe(row *hook.Row, file string, target uint64) *Probe {
	return &Probe{Library: row.Library, File: file, Symbol: row.Symbol, Row: row, target: target}
}

func rowOf(t *testing.T, p hook.Program) *hook.Row {
	t.Helper()
	for i := range hook.Rows {
		if hook.Rows[i].Program == p {
			return &hook.Rows[i]
		}
	}
	t.Fatalf("no row has program %d", p)
	return nil
}

func TestProbeSetAdd(t *testing.T) {
	report, call := rowOf(t, hook.TorchReport), rowOf(t, hook.Call)
	var s Probes
	fresh, err := s.Add([]*Probe{probe(call, "a", 1), probe(report, "b", 2), probe(call, "c", 1)})
	require.NoError(t, err)
	require.Len(t, fresh, 3)
	// A call takes two rows of the kernel's table: entry and return.
	require.Equal(t, []uint32{0, 2, 3}, []uint32{fresh[0].Index, fresh[1].Index, fresh[2].Index})
	require.EqualValues(t, 5, s.used)
	for row, want := range []*Probe{fresh[0], fresh[0], fresh[1], fresh[2], fresh[2]} {
		require.Same(t, want, s.ByRow[row])
		require.EqualValues(t, want.Row.Kind, s.Table.Row[row].Kind)
		require.EqualValues(t, want.Row.Size, s.Table.Row[row].ArgSize)
	}
	fresh, err = s.Add([]*Probe{probe(call, "a", 1), probe(call, "a", 9)})
	require.NoError(t, err)
	require.Len(t, fresh, 1, "one is there already")
}

func TestProbeSetBounds(t *testing.T) {
	call := rowOf(t, hook.Call)
	var many []*Probe
	for i := range MaxHooks {
		many = append(many, probe(call, fmt.Sprint(i), uint64(i)))
	}
	var s Probes
	fresh, err := s.Add(many)
	require.ErrorContains(t, err, "probes")
	require.Len(t, fresh, MaxHooks/2, "those before the limit are traced")
	require.LessOrEqual(t, int(s.used), MaxHooks)
}

// TestFillRow: each field of a row arrives in its own field of the kernel's.
func TestFillRow(t *testing.T) {
	table := new(bpf.TraceHookTable)
	fillRow(table, 3, &hook.Row{
		Kind: event.KindFree, Layer: event.LayerDevice, Pointer: 1, Size: 2, Allocated: 3, Reserved: 4, Device: 5, DeviceType: event.DeviceXPU,
	}, false)
	got := table.Row[3]
	require.Equal(t, []uint8{2, 2, 1, 2, 3, 4, 5, 12, 0},
		[]uint8{got.Kind, got.Layer, got.ArgPtr, got.ArgSize, got.ArgAllocated, got.ArgReserved, got.ArgDevice, got.DeviceType, got.Flags})
}

func TestFillRowOperands(t *testing.T) {
	operand := func(n uint8) hook.Operand { return hook.Operand{From: hook.FromField, Arg: n, Offset: 100 + uint16(n)} }
	row := &hook.Row{
		Program: hook.Call, Kind: event.KindUnmap, Object: event.ObjectPool, Addr: operand(1), Handle: operand(2), Ordinal: operand(3),
		Guard: operand(9), GuardValue: 77, Current: true,
	}
	for n := range uint8(hook.MaxDims) {
		row.Dims = append(row.Dims, operand(4+n))
	}
	table := new(bpf.TraceHookTable)
	fillRow(table, 0, row, true)
	got := table.Row[0]
	require.EqualValues(t, event.ObjectPool, got.Object)
	require.EqualValues(t, bpf.TraceHookFlagHOOK_CURRENT|bpf.TraceHookFlagHOOK_DEFER, got.Flags)
	require.Len(t, got.Operand, 3+hook.MaxDims)
	for i, o := range got.Operand {
		require.Equal(t, []any{uint8(hook.FromField), uint8(i + 1), uint16(101 + i)}, []any{o.From, o.Arg, o.Offset})
	}
	require.Equal(t, []any{uint8(9), uint16(109), uint32(77)}, []any{got.Guard.Arg, got.Guard.Offset, got.GuardValue})

	row.Kind = event.KindMap
	fillRow(table, 0, row, true)
	require.EqualValues(t, bpf.TraceHookFlagHOOK_CURRENT, table.Row[0].Flags, "only what gives memory back is deferred")
	for program, kind := range map[hook.Program]bpf.TraceEventKind{
		hook.SetContext: bpf.TraceEventKindKIND_SET_CONTEXT, hook.SetDevice: bpf.TraceEventKindKIND_SET_DEVICE,
	} {
		fillRow(table, 0, &hook.Row{Program: program}, false)
		require.EqualValues(t, kind, table.Row[0].Kind)
	}
}

// TestOff: what happens counts from when all probes of a library are attached on, also beside probes that are there already.
func TestOff(t *testing.T) {
	off := func(s *Probes, p *Probe) bool {
		return s.Table.Row[p.Index].Flags&uint8(bpf.TraceHookFlagHOOK_OFF) != 0
	}
	var s Probes
	first, late, report := probe(rowOf(t, hook.Call), "a", 1), probe(rowOf(t, hook.Call), "b", 1), probe(rowOf(t, hook.TorchReport), "c", 1)
	_, err := s.Add([]*Probe{first, report})
	require.NoError(t, err)
	require.True(t, off(&s, first))
	require.True(t, off(&s, report))
	s.Set([]*Probe{first, report}, true)
	require.False(t, off(&s, first))
	_, err = s.Add([]*Probe{late})
	require.NoError(t, err)
	require.False(t, off(&s, first))
	require.True(t, off(&s, late))
	s.Set([]*Probe{late}, true)
	require.False(t, off(&s, late))
	s.Set(s.All, false)
	for _, p := range s.All {
		require.True(t, off(&s, p))
	}
}

// TestDeferred: frees of the runtime are left to the driver once the driver is traced, whichever comes first.
func TestDeferred(t *testing.T) {
	find := func(symbol string) *hook.Row {
		i := slices.IndexFunc(hook.Rows, func(r hook.Row) bool { return r.Symbol == symbol })
		require.NotEqual(t, -1, i, symbol)
		return &hook.Rows[i]
	}
	deferred := func(s *Probes, p *Probe) bool {
		return s.Table.Row[p.Index].Flags&uint8(bpf.TraceHookFlagHOOK_DEFER) != 0
	}
	var s Probes
	runtime, driver := probe(find("cudaFree"), "libcudart.so.13", 1), probe(find("cuMemFree_v2"), "libcuda.so.1", 2)
	_, err := s.Add([]*Probe{runtime})
	require.NoError(t, err)
	require.False(t, deferred(&s, runtime))
	_, err = s.Add([]*Probe{driver})
	require.NoError(t, err)
	require.True(t, deferred(&s, runtime))
	require.False(t, deferred(&s, driver))
}

// TestInfoBounds: of too many mappings those of the program stay, and those that were made first.
func TestInfoBounds(t *testing.T) {
	maps := []process.Mapping{at(0x1000, 0x2000, "program"), at(0x2000, 0x3000, "program")}
	for i := range uint64(MaxMappings + 5) {
		maps = append(maps, at((i+10)<<12, (i+11)<<12, "x"))
	}
	d := NewInfo(7, regionsOf(maps...), nil)
	require.EqualValues(t, MaxMappings, d.Nmappings)
	kept := append(maps[:2:2], maps[len(maps)-MaxMappings+2:]...)
	for i := range kept {
		require.Equal(t, kept[i].Start, d.Mapping[i].Start)
	}
	require.Zero(t, d.Python.Enabled)
	require.Zero(t, d.Block.Count)

	require.Len(t, mapped.First(regionsOf(maps[:MaxMappings]...), MaxMappings), MaxMappings)
	for i := range maps {
		maps[i].Path = "program"
	}
	require.Len(t, mapped.First(regionsOf(maps...), MaxMappings), MaxMappings)
}

var define = regexp.MustCompile(`(?m)^#define\s+(\w+)\s+\(?([^\s/()]+)\)?`)

// defines are the constants of the C side that no generated type carries.
func defines(t *testing.T) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, header := range []string{"../../../bpf/limits.h", "../../../bpf/tables.h"} {
		text, err := os.ReadFile(header)
		require.NoError(t, err)
		for _, m := range define.FindAllStringSubmatch(string(text), -1) {
			if n, err := strconv.ParseUint(m[2], 0, 64); err == nil {
				out[m[1]] = n
			}
		}
	}
	return out
}

// TestDefines compares numbers that both sides write down.
func TestDefines(t *testing.T) {
	c := defines(t)
	for name, here := range map[string]uint64{
		"MAX_MAPPINGS": uint64(MaxMappings), "MAX_HOOKS": uint64(MaxHooks), "MAX_RULES": uint64(maxRules), "MAX_INFOS": oneInfos,
		"MAX_TRACED": MaxTraced, "NO_INFO": NoInfo, "MAX_CONTEXTS": maxContexts, "CACHED_WALKS": cachedWalks, "MAX_DIMS": hook.MaxDims,
		"ROW_CHUNK": chunkRows, "MAX_CHUNKS": maxChunks, "MAX_RINGS": maxRings, "NO_FIELD": cpython.NoField, "TIMED_ONE_IN": timedOneIn,
		"ARG_NONE": uint64(hook.None),
	} {
		require.Contains(t, c, name)
		require.Equal(t, c[name], here, name)
	}
}

func TestBlockLayoutDescribe(t *testing.T) {
	site := func(ret uint64, size uint16) inspect.BlockSite {
		return inspect.BlockSite{Return: ret, BaseSP: true, Offset: -8, SizeOffset: size, PtrOffset: 32}
	}
	l := &blockLayout{bias: 0x10000, sites: []inspect.BlockSite{site(1, 24), site(2, 40), site(3, 24)}}
	d := new(bpf.TraceUnwindInfo)
	l.describe(d)
	require.EqualValues(t, 2, d.Block.Count, "a site of another layout is left out")
	require.EqualValues(t, 0x10001, d.Block.Site[0].Ret)
	require.EqualValues(t, 0x10003, d.Block.Site[1].Ret)
	require.EqualValues(t, -8, d.Block.Site[0].Offset)
	require.EqualValues(t, 1, d.Block.Site[0].BaseSp)
	require.Equal(t, []uint16{8, 24, 32, 40, 32}, []uint16{d.Block.Stream, d.Block.Size, d.Block.Requested, d.Block.Pool, d.Block.Ptr})

	for range 3 * len(d.Block.Site) {
		l.sites = append(l.sites, site(9, 24))
	}
	full := new(bpf.TraceUnwindInfo)
	l.describe(full)
	require.EqualValues(t, len(full.Block.Site), full.Block.Count)

	for name, bad := range map[string]*blockLayout{
		"none":                        nil,
		"size behind what is read":    {sites: []inspect.BlockSite{{SizeOffset: 112, PtrOffset: 8}}},
		"address behind what is read": {sites: []inspect.BlockSite{{SizeOffset: 24, PtrOffset: 128}}},
	} {
		d := new(bpf.TraceUnwindInfo)
		bad.describe(d)
		require.Zero(t, d.Block.Count, name)
	}
}

func at(start, end uint64, path string) process.Mapping {
	return process.Mapping{Start: start, End: end, Exec: true, Inode: 1, Path: path}
}

func regionsOf(maps ...process.Mapping) []mapped.Region {
	var out []mapped.Region
	for _, m := range maps {
		out = append(out, mapped.NewRegion(m, &mapped.File{}))
	}
	return out
}
