// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"path/filepath"
	"testing"

	"github.com/gputrace/gputrace/internal/elftest"
)

func BenchmarkUnwindTable(b *testing.B) {
	for _, path := range libraries(b) {
		b.Run(filepath.Base(path), func(b *testing.B) {
			f := open(b, path)
			rows := 0
			b.ReportAllocs()
			for b.Loop() {
				rows = len(tableOf(b, f).Rows)
			}
			b.ReportMetric(float64(rows), "rows")
		})
	}
}

// BenchmarkProcess is what attaching to a PyTorch process costs: the tables of all of its libraries, built and cached.
func BenchmarkProcess(b *testing.B) {
	paths := torchLibraries(b)
	if paths == nil {
		b.Skip(elftest.TorchLib + " is not set")
	}
	for _, cached := range []bool{false, true} {
		b.Run(map[bool]string{false: "build", true: "cached"}[cached], func(b *testing.B) {
			var c Cache
			if cached {
				c.Dir = b.TempDir()
			}
			for b.Loop() {
				for _, path := range paths {
					if _, _, err := c.Table(open(b, path).Frames()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
