// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

// entries are the cache's files by name.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func mustTable(t *testing.T, c *Cache, f *file) (*Table, bool) {
	t.Helper()
	table, hit, err := c.Table(f.Frames())
	if err != nil {
		t.Fatal(err)
	}
	return table, hit
}

func TestCacheHit(t *testing.T) {
	f := open(t, libc(t))
	want := tableOf(t, f)
	c := &Cache{Dir: filepath.Join(t.TempDir(), "a", "b")}
	for i := range 3 {
		got, hit := mustTable(t, c, f)
		if hit != (i > 0) {
			t.Errorf("call %d: hit %v", i, hit)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("call %d: the tables differ", i)
		}
		if n := entries(t, c.Dir); len(n) != 1 {
			t.Errorf("call %d: files %v", i, n)
		}
	}
}

// TestCacheDamage changes each part of an entry: it must be built again, and written anew.
func TestCacheDamage(t *testing.T) {
	f := open(t, libc(t))
	want := tableOf(t, f)
	c := &Cache{Dir: t.TempDir()}
	mustTable(t, c, f)
	path := filepath.Join(c.Dir, entries(t, c.Dir)[0])
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := map[string][]byte{
		"empty": nil, "head cut": good[:cacheHeader-1], "no rows": good[:cacheHeader], "last byte cut": good[:len(good)-1],
		"last row cut": good[:len(good)-8], "longer": append(slices.Clone(good), make([]byte, 8)...),
	}
	for _, at := range []int{0, 8, 12, 16, 47, 48, 55, 56, 63, cacheHeader, len(good) / 2, len(good) - 1} {
		b := slices.Clone(good)
		b[at] ^= 0x80
		damaged[fmt.Sprintf("byte %d", at)] = b
	}
	for name, b := range damaged {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, hit := mustTable(t, c, f)
		if hit || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: hit %v, tables equal %v", name, hit, reflect.DeepEqual(got, want))
		}
		if now, _ := os.ReadFile(path); !slices.Equal(now, good) {
			t.Errorf("%s: the entry was not written anew", name)
		}
	}
}

// TestCacheOtherFile: two files have the same build-id and size, as after editing a file in place.
func TestCacheOtherFile(t *testing.T) {
	const text = ".cfi_startproc\n.cfi_def_cfa_offset %d\nnop\n.cfi_endproc\n.section .note.id, \"a\", @note\n" +
		".long 4, 8, 3\n.asciz \"GNU\"\n.quad 7\n"
	c := &Cache{Dir: t.TempDir()}
	for _, cfa := range []int{16, 24, 16} {
		f := open(t, build(t, "same.s", fmt.Sprintf(text, cfa), "-Wl,--build-id=none"))
		if f.BuildID() != "0700000000000000" {
			t.Fatalf("build-id %q", f.BuildID())
		}
		table, hit := mustTable(t, c, f)
		if got := table.Lookup(uint64(uint32(table.Rows[0]))); hit || got.Offset() != int64(cfa) {
			t.Errorf("hit %v, rule %v, want a CFA at %d", hit, got, cfa)
		}
	}
}

func TestCacheWithout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, libc(t))
	want := tableOf(t, f)
	for name, c := range map[string]*Cache{"nil": nil, "no folder": {}, "folder is a file": {Dir: file},
		"folder cannot be made": {Dir: file + "/below"}, "proc": {Dir: "/proc/none"}} {
		for range 2 {
			if got, hit := mustTable(t, c, f); hit || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: hit %v", name, hit)
			}
		}
	}
	c := &Cache{Dir: t.TempDir()}
	none := open(t, build(t, "none.s", ".cfi_startproc\nnop\n.cfi_endproc", "-Wl,--build-id=none"))
	if _, hit := mustTable(t, c, none); hit || len(entries(t, c.Dir)) != 0 {
		t.Errorf("a file without a build-id left %v", entries(t, c.Dir))
	}
}

func TestCacheTrim(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, size int, age time.Duration) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	put("oldest.unwind", 100, 3*time.Hour)
	put("old.unwind", 100, 2*time.Hour)
	put("new.unwind", 100, time.Minute)
	put("other", 1000, 4*time.Hour)
	put(".unwind-1.tmp", 10, 2*time.Hour)
	put(".unwind-2.tmp", 10, time.Minute)
	for _, c := range []struct {
		limit int64
		want  []string
	}{
		{300, []string{".unwind-2.tmp", "new.unwind", "old.unwind", "oldest.unwind", "other"}},
		{299, []string{".unwind-2.tmp", "new.unwind", "old.unwind", "other"}},
		{100, []string{".unwind-2.tmp", "new.unwind", "other"}},
		{1, []string{".unwind-2.tmp", "other"}},
	} {
		(&Cache{Dir: dir, MaxBytes: c.limit}).trim()
		if got := entries(t, dir); !slices.Equal(got, c.want) {
			t.Errorf("limit %d: got %v, want %v", c.limit, got, c.want)
		}
	}
}

// TestCacheKeepsUsed reads an entry between two writes: it must outlive one that was not read.
func TestCacheKeepsUsed(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	source := ".cfi_startproc\nnop\n.cfi_endproc\n.skip "
	used, unused, last := open(t, build(t, "a.s", source+"1")), open(t, build(t, "b.s", source+"2")), open(t, build(t, "c.s", source+"3"))
	mustTable(t, c, used)
	mustTable(t, c, unused)
	size := int64(0)
	for i, name := range entries(t, c.Dir) {
		path := filepath.Join(c.Dir, name)
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
		old := time.Now().Add(-time.Duration(i+1) * time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, hit := mustTable(t, c, used); !hit {
		t.Fatal("no hit")
	}
	c.MaxBytes = size
	mustTable(t, c, last)
	if _, hit := mustTable(t, c, used); !hit {
		t.Error("the used entry is gone")
	}
	if _, hit := mustTable(t, c, unused); hit {
		t.Error("the unused entry is still there")
	}
}
