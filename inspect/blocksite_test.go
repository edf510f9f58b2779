//go:build linux

package inspect

import (
	"os"
	"testing"

	"github.com/gputrace/gputrace/symbolize"
)

func TestX(t *testing.T) {
	for _, p := range []string{"/tmp/venv/lib/python3.11/site-packages/torch/lib/libc10_cuda.so", "/tmp/h5/wheels/2.10.0/libc10_cuda.so", "/tmp/h5/wheels/2.6.0/libc10_cuda.so", "/tmp/h5/wheels/2.1.2/libc10_cuda.so", "/tmp/h5/wheels/2.0.1/libc10_cuda.so"} {
		o, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		f, err := symbolize.Open(o, p)
		if err != nil {
			t.Fatal(err)
		}
		s, err := BlockSites(f)
		t.Logf("%s %+v %v", p, s, err)
		calls, _ := reportCalls(f)
		for _, c := range calls {
			a, r, ok := c.totals()
			t.Logf("%#x %#x %#x %v", c.end, a, r, ok)
		}
	}
}

func BenchmarkX(b *testing.B) {
	p := "/tmp/venv/lib/python3.11/site-packages/torch/lib/libc10_cuda.so"
	for b.Loop() {
		o, _ := os.Open(p)
		f, _ := symbolize.Open(o, p)
		BlockSites(f)
		f.Close()
		o.Close()
	}
}
