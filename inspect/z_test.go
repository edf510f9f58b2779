package inspect

import (
	"github.com/gputrace/gputrace/process"
	"os"
	"strconv"
	"testing"
	"time"
)

func TestZ(t *testing.T) {
	pid, _ := strconv.Atoi(os.Getenv("P"))
	p, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t0 := time.Now()
	a, err := Find(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%x %v", a.layout.vectors, time.Since(t0))
	t0 = time.Now()
	x, err := a.Totals()
	t.Log(x, err, time.Since(t0))
	t0 = time.Now()
	m, err := a.Map()
	t.Log(err, time.Since(t0))
	if err != nil {
		t.Fatal()
	}
	t0 = time.Now()
	m, err = a.Map()
	t.Log(err, time.Since(t0))
	if err != nil {
		t.Fatal()
	}
	for _, d := range m.Devices {
		t.Logf("%+v %d %d", d.DeviceTotals, d.Active, len(d.Segments))
		if len(d.Segments) < 20 {
			for _, s := range d.Segments {
				t.Logf("%+v", s)
			}
		}
	}
}
