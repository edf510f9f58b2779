// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const importsC = `
void use(void *); void used(void); void other(void);
void (*pointer)(void) = used;
void f(void) { use(f); used(); other(); }
`

// TestImportSlots compares with readelf, for the ways of binding and with and without symbols and sections.
func TestImportSlots(t *testing.T) {
	for _, flags := range []string{
		"-Wl,-z,lazy", "-Wl,-z,now", "-fno-plt -Wl,-z,now", "-fcf-protection=full -Wl,-z,ibtplt", "-s -Wl,-z,lazy",
		"-Wl,--hash-style=sysv -s -Wl,-z,lazy -Wl,-z,noseparate-code",
	} {
		t.Run(strings.ReplaceAll(flags, " ", "_"), func(t *testing.T) {
			path := build(t, "imports.c", importsC, append([]string{"-O2"}, strings.Fields(flags)...)...)
			var want []uint64
			for _, line := range strings.Split(output(t, "readelf", "-rW", path), "\n") {
				fields := strings.Fields(line)
				if len(fields) >= 5 && strings.HasPrefix(fields[4], "use") {
					var slot uint64
					if _, err := fmt.Sscanf(fields[0], "%x", &slot); err != nil {
						t.Fatal(line)
					}
					want = append(want, slot)
				}
			}
			if len(want) < 3 {
				t.Fatalf("readelf shows %d slots, want at least 3", len(want))
			}
			f := open(t, path)
			got := f.ImportSlots("use")
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got %#x, want %#x", got, want)
			}
			checkCode(t, f, path)
		})
	}
}

func checkCode(t *testing.T, f *File, path string) {
	t.Helper()
	var want []Range
	for _, line := range strings.Split(output(t, "readelf", "-lW", path), "\n") {
		var offset, vaddr, paddr, filesz uint64
		if n, _ := fmt.Sscanf(line, " LOAD %v %v %v %v", &offset, &vaddr, &paddr, &filesz); n == 4 && strings.Contains(line, " R E ") {
			want = append(want, Range{Start: vaddr, End: vaddr + filesz})
		}
	}
	if got := f.CodeRanges(); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("got %#x, want %#x", got, want)
	}
}

// FuzzImportSlots edits a real file.
func FuzzImportSlots(f *testing.F) {
	image, err := os.ReadFile(build(f, "imports.c", importsC, "-O2", "-Wl,-z,lazy"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), uint64(0))
	f.Fuzz(func(t *testing.T, at uint32, word uint64) {
		b := slices.Clone(image)
		binary.LittleEndian.PutUint64(b[int(at)%(len(b)-8):], word)
		file, err := OpenBytes(b, "fuzz")
		if err != nil {
			return
		}
		for _, s := range file.ImportSlots("use") {
			if file.Loaded(s) == nil {
				t.Fatalf("slot %#x is in no segment", s)
			}
		}
		for _, r := range file.CodeRanges() {
			if r.End < r.Start {
				t.Fatalf("%#x", r)
			}
		}
	})
}
