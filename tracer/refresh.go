//go:build linux

package tracer

import (
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/process"
)

// refreshIfDue follows the target's mappings: libraries that it loads get unwind rows and probes, and when it becomes
// another program the trace ends.
func (t *Tracer) refreshIfDue() {
	since := time.Since(t.lastRefresh)
	if t.detached || since < refreshSoon || (!t.unknownCode && since < refreshEvery) {
		return
	}
	t.lastRefresh, t.unknownCode = time.Now(), false
	maps, err := t.target.Maps()
	if err != nil || len(maps) == 0 {
		return // it is just ending; exitWatch tells
	}
	if t.python == nil {
		t.retryPython()
	}
	if sameCode(t.regions, maps) {
		return
	}
	if t.replaced(maps) {
		t.end = Execed
		return
	}
	t.regions = t.objects.regions(maps)
	if err := t.publish(); err != nil {
		t.warn(err)
		return
	}
	probes, _ := t.discover() // what was there before is still there
	if err := t.attach(probes); err != nil {
		t.warn(err)
	}
}

// retryPython finds an interpreter that was just starting at the attach.
func (t *Tracer) retryPython() {
	if py, err := cpython.Find(t.target); err == nil {
		t.python, t.found.PythonErr = py, nil
		if err := t.publish(); err != nil {
			t.warn(err)
		}
	}
}

// sameCode reports whether the executable mappings are those that the kernel knows.
func sameCode(regions []region, maps []process.Mapping) bool {
	i := 0
	for _, m := range maps {
		if !m.Exec || m.Path == "[vsyscall]" {
			continue
		}
		if i == len(regions) || regions[i].Mapping != m {
			return false
		}
		i++
	}
	return i == len(regions)
}

// replaced reports whether none of the hooked files is mapped where it was: the process has called exec.
func (t *Tracer) replaced(maps []process.Mapping) bool {
	at := map[uint64]string{}
	for _, m := range maps {
		at[m.Start] = m.Path
	}
	for _, r := range t.regions {
		if r.Inode != 0 && at[r.Start] == r.Path {
			return false
		}
	}
	return true
}
