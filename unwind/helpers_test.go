// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"os"
	"testing"

	"github.com/gputrace/gputrace/internal/elfimage"
	"github.com/gputrace/gputrace/internal/elftest"
)

// Objects to test on, and other tools.
var (
	build          = elftest.Build
	libraries      = elftest.Libraries
	realLibraries  = elftest.RealLibraries
	torchLibraries = elftest.TorchLibraries
	output         = elftest.Output
	lines          = elftest.Lines
	written        = elftest.Written
)

func libc(t testing.TB) string { return libraries(t)[0] }

// file is an object with its frames, and its symbols by the standard library.
type file struct {
	*elfimage.Image
	frames Frames
	path   string
}

func (f *file) Frames() *Frames { return &f.frames }

// symbol is where a function is.
type symbol struct{ Addr, Size uint64 }

// Find is a symbol of the object.
func (f *file) Find(name string) (sym symbol, ok bool) {
	object, err := elf.Open(f.path)
	if err != nil {
		return symbol{}, false
	}
	defer object.Close()
	static, _ := object.Symbols()
	dynamic, _ := object.DynamicSymbols()
	for _, s := range append(static, dynamic...) {
		if s.Name == name && s.Section != elf.SHN_UNDEF {
			return symbol{s.Value, s.Size}, true
		}
	}
	return symbol{}, false
}

func open(t testing.TB, path string) *file {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	image, err := elfimage.Open(f, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { image.Close() })
	return &file{Image: image, frames: Frames{Image: image}, path: path}
}

func mustFind(t *testing.T, f *file, name string) uint64 {
	t.Helper()
	s, ok := f.Find(name)
	if !ok {
		t.Fatalf("%s not found", name)
	}
	return s.Addr
}
