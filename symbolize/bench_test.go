// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func BenchmarkSymbolIndex(b *testing.B) {
	for _, path := range libraries(b) {
		b.Run(filepath.Base(path), func(b *testing.B) {
			f := open(b, path)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n = len(f.buildIndex())
			}
			b.ReportMetric(float64(n), "symbols")
		})
	}
}

// BenchmarkFind looks for a name that is nowhere: both tables are read to their ends.
func BenchmarkFind(b *testing.B) {
	for _, path := range libraries(b) {
		f := open(b, path)
		b.Run("name/"+filepath.Base(path), func(b *testing.B) {
			for b.Loop() {
				f.Find("_ZN3c10nowhere")
			}
		})
		b.Run("prefix/"+filepath.Base(path), func(b *testing.B) {
			for b.Loop() {
				f.FindPrefix("_ZN3c10nowhere")
			}
		})
	}
}

// BenchmarkNames is what the first name of a file costs, and each further one at first sight.
func BenchmarkNames(b *testing.B) {
	for _, path := range libraries(b) {
		ranges := open(b, path).CodeRanges()
		code := ranges[len(ranges)-1]
		pcs := make([]uint64, 1<<12)
		for i := range pcs {
			pcs[i] = code.Start + rand.Uint64N(code.End-code.Start)
		}
		fresh := func() *File {
			f := open(b, path)
			f.DebugFrom(os.Open)
			return f
		}
		b.Run("first/"+filepath.Base(path), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fresh().Names(pcs[0])
			}
		})
		f, i := fresh(), 0
		f.Names(pcs[0])
		b.Run("next/"+filepath.Base(path), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.Names(pcs[i%len(pcs)])
				i++
			}
		})
	}
}
