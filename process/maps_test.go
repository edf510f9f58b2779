// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParseMapping(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want Mapping
	}{
		"library": {
			"7f0000001000-7f0000003000 r-xp 00002000 fe:01 1234                       /usr/lib/libc.so.6",
			Mapping{Start: 0x7f0000001000, End: 0x7f0000003000, Offset: 0x2000, Exec: true, Device: "fe:01", Inode: 1234,
				Path: "/usr/lib/libc.so.6"},
		},
		"deleted": {
			"1000-2000 r-xp 00000000 00:01 7 /tmp/lib.so (deleted)",
			Mapping{Start: 0x1000, End: 0x2000, Exec: true, Device: "00:01", Inode: 7, Path: "/tmp/lib.so", Deleted: true},
		},
		"spaces in the name": {
			"1000-2000 rw-p 00000000 00:01 7    /tmp/a b  c",
			Mapping{Start: 0x1000, End: 0x2000, Writable: true, Device: "00:01", Inode: 7, Path: "/tmp/a b  c"},
		},
		"newline in the name": {
			`1000-2000 r--p 00000000 00:01 7 /tmp/a\012b`,
			Mapping{Start: 0x1000, End: 0x2000, Device: "00:01", Inode: 7, Path: `/tmp/a\012b`},
		},
		"no file": {
			"1000-2000 rw-p 00000000 00:00 0 ",
			Mapping{Start: 0x1000, End: 0x2000, Writable: true, Device: "00:00"},
		},
		"no file, no blank": {
			"1000-2000 rw-p 00000000 00:00 0",
			Mapping{Start: 0x1000, End: 0x2000, Writable: true, Device: "00:00"},
		},
		"heap": {
			"1000-2000 rw-p 00000000 00:00 0                          [heap]",
			Mapping{Start: 0x1000, End: 0x2000, Writable: true, Device: "00:00", Path: "[heap]"},
		},
		"top of memory": {
			"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]",
			Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Exec: true, Device: "00:00", Path: "[vsyscall]"},
		},
		"largest inode": {
			"0-1 ---s ffffffffffffffff 00:00 18446744073709551615 /x",
			Mapping{End: 1, Shared: true, Offset: 1<<64 - 1, Device: "00:00", Inode: 1<<64 - 1, Path: "/x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseMapping(c.line)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseMappingRefuses(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"empty":              {"", "field count"},
		"too few fields":     {"1000-2000 r-xp 0 00:00", "field count"},
		"no dash":            {"1000 r-xp 0 00:00 0", "range or permissions"},
		"short permissions":  {"1000-2000 r-x 0 00:00 0", "range or permissions"},
		"start is no number": {"xyz-2000 r-xp 0 00:00 0", "start"},
		"end before start":   {"2000-1000 r-xp 0 00:00 0", "end"},
		"end too large":      {"0-10000000000000000 r-xp 0 00:00 0", "end"},
		"offset":             {"0-1 r-xp -1 00:00 0", "offset"},
		"inode":              {"0-1 r-xp 0 00:00 f", "inode"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseMapping(c.line)
			require.ErrorContains(t, err, "bad "+c.want)
		})
	}
}

func TestParseMapsBoundsLines(t *testing.T) {
	_, err := parseMaps(strings.NewReader("0-1 r-xp 0 00:00 0 /" + strings.Repeat("a", 2<<20)))
	require.Error(t, err)
}

func TestParseMapsBoundsCount(t *testing.T) {
	if testing.Short() {
		t.Skip("a million lines")
	}
	_, err := parseMaps(strings.NewReader(strings.Repeat("0-1 r-xp 0 0 0\n", maxMappings+1)))
	require.ErrorContains(t, err, "more than")
}

// FuzzParseMapping checks that what is accepted says the same when it is written out again as the kernel does.
func FuzzParseMapping(f *testing.F) {
	own, err := os.ReadFile("/proc/self/maps")
	require.NoError(f, err)
	for _, line := range strings.Split(strings.TrimSpace(string(own)), "\n") {
		f.Add(line)
	}
	f.Add("1000-2000 r-xp 00000000 00:01 7 /tmp/lib.so (deleted)")
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseMapping(line)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, m.End, m.Start)
		again, err := parseMapping(format(m))
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

// format writes a mapping as a line of /proc/PID/maps (fs/proc/task_mmu.c, show_map_vma).
func format(m Mapping) string {
	perms := []byte("r--p")
	if m.Writable {
		perms[1] = 'w'
	}
	if m.Exec {
		perms[2] = 'x'
	}
	path := m.Path
	if m.Deleted {
		path += " (deleted)"
	}
	return fmt.Sprintf("%08x-%08x %s %08x %s %d %s", m.Start, m.End, perms, m.Offset, m.Device, m.Inode, path)
}

func self(t *testing.T) *Process {
	t.Helper()
	p, err := Open(os.Getpid())
	require.NoError(t, err)
	return p
}

// TestMapsOfSelf compares with what the runtime knows: where a function and a variable of ours lie.
func TestMapsOfSelf(t *testing.T) {
	maps, err := self(t).Maps()
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	pc, _, _, ok := runtime.Caller(0)
	require.True(t, ok)
	found := false
	for i := range maps {
		if i > 0 {
			require.GreaterOrEqual(t, maps[i].Start, maps[i-1].End, "not sorted")
		}
		if maps[i].Start <= uint64(pc) && uint64(pc) < maps[i].End {
			found = true
			require.True(t, maps[i].Exec)
			require.False(t, maps[i].Writable)
			require.Equal(t, exe, maps[i].Path)
			require.Equal(t, filepath.Base(exe), maps[i].Base())
		}
	}
	require.True(t, found, "no mapping holds our own code")
}

// TestOpenFileDeleted maps a file, deletes it and puts another in its place: the one behind the mapping is wanted.
func TestOpenFileDeleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "library.so")
	require.NoError(t, os.WriteFile(path, []byte("the first"), 0o644))
	m := mapFile(t, path)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("the second"), 0o644))

	maps, err := self(t).Maps()
	require.NoError(t, err)
	for i := range maps {
		if maps[i].Path != path {
			continue
		}
		require.True(t, maps[i].Deleted)
		f, err := self(t).OpenFile(&maps[i])
		require.NoError(t, err)
		defer f.Close()
		b := make([]byte, 9)
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, "the first", string(b))
		runtime.KeepAlive(m)
		return
	}
	t.Fatal("the mapping is not listed")
}

func mapFile(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

func TestOpenFileWithoutFile(t *testing.T) {
	_, err := self(t).OpenFile(&Mapping{Start: 0x1000, End: 0x2000, Path: "[heap]"})
	require.ErrorContains(t, err, "no file behind it")
}

func TestOpenFileRefusesWhatIsNoFile(t *testing.T) {
	// /dev/zero is mapped by programs; reading it would never end.
	_, err := self(t).OpenFile(&Mapping{Start: 0, End: 0x1000, Inode: 5, Path: "/dev/zero"})
	require.ErrorContains(t, err, "not a regular file")
}

// FuzzParseMaps reads whole lists, as /proc/PID/maps of a process is that names its files: what is accepted has a mapping a line.
func FuzzParseMaps(f *testing.F) {
	own, err := os.ReadFile("/proc/self/maps")
	require.NoError(f, err)
	f.Add(string(own))
	f.Add("0-1 r-xp 0 00:00 0 /a\\012 2-3 rwxp 0 0 0 /b\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		maps, err := parseMaps(strings.NewReader(text))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(maps), strings.Count(text, "\n")+1)
		for i := range maps {
			require.NotContains(t, maps[i].Path, "\n")
		}
	})
}

// FuzzCredentials reads the status of a process that gives itself names and groups.
func FuzzCredentials(f *testing.F) {
	own, err := os.ReadFile("/proc/self/status")
	require.NoError(f, err)
	f.Add(string(own))
	f.Add("Uid:\t0\t0\t0\t99999999999\nGid:\t0\t0\t0\t0\n")
	f.Add("Name:\tx\nUid:\t5\nUid:\t1\t2\t3\t4\nGid:\t-1\t0\t0\t0\nGroups:\t\n")
	f.Fuzz(func(t *testing.T, status string) {
		p := &Process{PID: 1, root: t.TempDir()}
		require.NoError(t, os.WriteFile(p.root+"/status", []byte(status), 0o644))
		c, err := p.credentials()
		if err == nil {
			require.NotEmpty(t, c.groups)
		}
		for i, pid := range p.PIDs() {
			require.True(t, i > 0 || pid == 1)
		}
		p.CodePages()
	})
}
