// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"os"
	"testing"

	"github.com/gputrace/gputrace/internal/elftest"
	"github.com/gputrace/gputrace/unwind"
)

// Objects to test on, and other tools.
var (
	build     = elftest.Build
	libraries = elftest.Libraries
	output    = elftest.Output
	lines     = elftest.Lines
	written   = elftest.Written
)

func libc(t testing.TB) string { return libraries(t)[0] }

func open(t testing.TB, path string) *File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := Open(f, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func tableOf(t testing.TB, f *File) *unwind.Table {
	t.Helper()
	table, err := f.Frames().Table()
	if err != nil || table == nil {
		t.Fatalf("table %v, error %v", table, err)
	}
	return table
}
