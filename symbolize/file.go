// SPDX-License-Identifier: Apache-2.0

// Package symbolize names the frames of stacks: functions by name and by address, source lines, and functions that are inlined,
// from the symbols and the debug information of ELF objects.
//
// An address inside a file is its link-time address (vaddr), as readelf and addr2line print it.
package symbolize

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/gputrace/gputrace/internal/elfimage"
	"github.com/gputrace/gputrace/unwind"
)

// File is an ELF64 little-endian object, mapped read-only. It is safe for concurrent use until Close. A file that is
// truncated while it is open yields errors and empty answers, not a crash.
type File struct {
	*elfimage.Image
	frames unwind.Frames // how functions are unwound

	symbolsOnce sync.Once
	symbols     symbolTables
	indexOnce   sync.Once
	index       []indexEntry

	main      *File // the file whose code this one, a debug file, describes; nil for a file that has its own
	openDebug []func(path string) (*os.File, error)
	debugOnce sync.Once
	debug     atomic.Pointer[File]
	miniOnce  sync.Once
	mini      *File
	linesMu   sync.Mutex
	lines     *lineTable
	haveLines bool // lines was looked for since the last Release
}

// Open maps a file. It does not take f over: the caller may close f at once. path is for messages only. Errors about
// contents wrap ErrFormat.
func Open(f *os.File, path string) (*File, error) {
	image, err := elfimage.Open(f, path)
	if err != nil {
		return nil, err
	}
	return newFile(image), nil
}

// OpenBytes reads an image from memory: the vdso. The File keeps b, which must not change. Errors wrap ErrFormat.
func OpenBytes(b []byte, path string) (*File, error) {
	image, err := elfimage.New(b, path)
	if err != nil {
		return nil, err
	}
	return newFile(image), nil
}

func newFile(image *elfimage.Image) *File {
	f := &File{Image: image}
	f.frames.Image = image
	return f
}

// Frames is how the functions of the file are unwound; shared. nil: there is no file.
func (f *File) Frames() *unwind.Frames {
	if f == nil {
		return nil
	}
	return &f.frames
}

// Close unmaps the file. No call may be running or follow.
func (f *File) Close() error {
	if d := f.debug.Load(); d != nil {
		d.Close()
	}
	return f.Image.Close()
}

// Release returns the pages of the file that were read to the kernel, those of its debug file too, and forgets what was
// read of the debug information. All comes back when it is needed again: the pages from the page cache; the debug information
// at the price of the first name.
func (f *File) Release() {
	f.linesMu.Lock()
	f.lines, f.haveLines = nil, false
	f.linesMu.Unlock()
	if d := f.debug.Load(); d != nil {
		d.Release()
	}
	f.Image.Release()
}
