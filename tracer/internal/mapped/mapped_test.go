// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package mapped

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

func at(start, end uint64, path string) process.Mapping {
	return process.Mapping{Start: start, End: end, Exec: true, Inode: 1, Path: path}
}

func regionsOf(maps ...process.Mapping) []Region {
	var out []Region
	for _, m := range maps {
		out = append(out, NewRegion(m, &File{}))
	}
	return out
}

func TestFindRegion(t *testing.T) {
	regions := regionsOf(at(0x1000, 0x2000, "a"), at(0x2000, 0x3000, "b"), at(0x5000, 0x6000, "c"))
	for pc, want := range map[uint64]string{
		0: "", 0xfff: "", 0x1000: "a", 0x1fff: "a", 0x2000: "b", 0x2fff: "b", 0x3000: "", 0x4fff: "", 0x5000: "c", 0x5fff: "c", 0x6000: "",
		1<<64 - 1: "",
	} {
		got := Find(regions, pc)
		if want == "" {
			require.Nil(t, got, "%#x", pc)
			continue
		}
		require.NotNil(t, got, "%#x", pc)
		require.Equal(t, want, got.Path, "%#x", pc)
	}
	require.Nil(t, Find(nil, 1))
}

func TestSameCode(t *testing.T) {
	a, b := at(0x1000, 0x2000, "a"), at(0x2000, 0x3000, "b")
	data := process.Mapping{Start: 0x8000, End: 0x9000, Path: "[heap]"}
	vsyscall := process.Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Exec: true, Path: "[vsyscall]"}
	moved := a
	moved.End += 0x1000
	for name, c := range map[string]struct {
		maps []process.Mapping
		want bool
	}{
		"the same":        {[]process.Mapping{a, b}, true},
		"data beside":     {[]process.Mapping{a, b, data, vsyscall}, true},
		"one more":        {[]process.Mapping{a, b, at(0x5000, 0x6000, "c")}, false},
		"one less":        {[]process.Mapping{a}, false},
		"one longer":      {[]process.Mapping{moved, b}, false},
		"another in turn": {[]process.Mapping{a, at(0x2000, 0x3000, "c")}, false},
		"none":            {nil, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Same(regionsOf(a, b), c.maps)) })
	}
}

func TestOverlapping(t *testing.T) {
	a, b := at(0x1000, 0x2000, "a"), at(0x3000, 0x5000, "b")
	for name, c := range map[string]struct {
		start, end uint64
		want       []Region
	}{
		"before all":     {0, 0x1000, regionsOf()},
		"into the first": {0, 0x1001, regionsOf(a)},
		"inside":         {0x3800, 0x3900, regionsOf(b)},
		"between":        {0x2000, 0x3000, regionsOf()},
		"over a gap":     {0x1800, 0x3001, regionsOf(a, b)},
		"over all":       {0, 0x9000, regionsOf(a, b)},
		"behind all":     {0x5000, 0x6000, regionsOf()},
	} {
		t.Run(name, func(t *testing.T) {
			var got []process.Mapping
			for _, r := range Overlapping(regionsOf(a, b), &regionsOf(at(c.start, c.end, "x"))[0]) {
				got = append(got, r.Mapping)
			}
			var want []process.Mapping
			for _, r := range c.want {
				want = append(want, r.Mapping)
			}
			require.Equal(t, want, got)
		})
	}
}

// TestOpenOurs: of the tracer's own file system only debug files are opened for a target, and only regular ones.
func TestOpenOurs(t *testing.T) {
	for _, path := range []string{"/etc/passwd", "/usr/lib/debug", "/usr/lib/debug/../../../etc/passwd", "/usr/lib/debugger/x",
		"usr/lib/debug/x", ""} {
		_, err := openOurs(path)
		require.ErrorContains(t, err, "not in /usr/lib/debug/", path)
	}
	_, err := openOurs("/usr/lib/debug/.build-id")
	require.Error(t, err, "a folder")
}
