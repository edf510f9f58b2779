package symbolize

import (
	"os"
	"testing"

	"github.com/gputrace/gputrace/process/elfimage/elftest"
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
