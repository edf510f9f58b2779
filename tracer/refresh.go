//go:build linux

package tracer

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/process"
)

// refreshIfDue follows the target's mappings: libraries that it loads get unwind rows and probes, and when it becomes
// another program the trace ends.
func (t *Tracer) refreshIfDue() {
	if t.detached || time.Since(t.lastRefresh) < t.refreshInterval() {
		return
	}
	t.lastRefresh, t.unknownCode = time.Now(), false
	t.releaseIfQuiet()
	if !t.readMappings() {
		return
	}
	if !t.unpublished {
		t.retryPython()
		return
	}
	t.unpublished = false
	if t.python == nil {
		t.findPython()
	}
	if err := t.publish(); err != nil {
		t.warn(err)
		return
	}
	t.hookLate()
}

// refreshFor reads the mappings for an address that is in none that is known, unless that was in vain a moment ago. It
// reports whether the address is in one now. The kernel gets to know them when a refresh is due: it can follow only so many.
func (t *Tracer) refreshFor(pc uint64) bool {
	if t.detached || pc == t.missing && time.Since(t.lastRefresh) < refreshEvery {
		return false
	}
	t.unknownCode = true
	if t.refreshIfDue(); findRegion(t.regions, pc) == nil {
		t.readMappings()
	}
	if findRegion(t.regions, pc) == nil {
		t.missing = pc
		return false
	}
	return true
}

// readMappings brings the regions up to date. It reports whether the target could be read and is still the same program.
func (t *Tracer) readMappings() bool {
	maps, err := t.target.Maps()
	if err != nil || len(maps) == 0 {
		return false // it is just ending; exitWatch tells
	}
	if sameCode(t.regions, maps) {
		return true
	}
	if t.replaced(maps) {
		t.end = Execed
		return false
	}
	t.lastChange = time.Now()
	t.regions = t.objects.regions(maps)
	t.stacks.lookedUp = time.Now()
	t.unpublished = true
	return true
}

// releaseIfQuiet gives back the memory that unwind tables and names took to make, once no name was looked up for a while:
// most stacks are seen in the first seconds.
func (t *Tracer) releaseIfQuiet() {
	if t.stacks.lookedUp.IsZero() || time.Since(t.stacks.lookedUp) < quietFor {
		return
	}
	t.stacks.lookedUp = time.Time{}
	t.objects.release()
	go debug.FreeOSMemory() // events must not wait for it
}

// hookLate adds the probes of libraries that were loaded after the attach.
func (t *Tracer) hookLate() {
	probes, _ := t.discover() // what was there before is still there
	before := len(t.probes.probes)
	if err := t.attach(probes); err != nil {
		t.warn(err)
	}
	t.notices = append(t.notices, loadedNotices(t.probes.probes[before:])...)
	t.found = t.describe(t.found.Took)
}

// loadedNotices tells of new probes, a line a file.
func loadedNotices(probes []*Probe) []string {
	var out []string
	for _, file := range byFile(probes) {
		if len(file) == 1 {
			out = append(out, fmt.Sprintf("%s was loaded: hooked %s", file[0].File, file[0].Label()))
		} else {
			out = append(out, fmt.Sprintf("%s was loaded: hooked %d functions", file[0].File, len(file)))
		}
	}
	return out
}

// refreshInterval is how long the mappings may go unread: little while libraries are being loaded, or when a stack met
// unknown code.
func (t *Tracer) refreshInterval() time.Duration {
	switch {
	case t.unknownCode || time.Since(t.lastChange) < loadingFor:
		return refreshSoon
	default:
		return refreshEvery
	}
}

// retryPython finds an interpreter that was there before but just starting. Another one can only come with new code.
func (t *Tracer) retryPython() {
	if t.python != nil || !errors.Is(t.found.PythonErr, cpython.ErrNotReady) {
		return
	}
	if t.findPython(); t.python == nil {
		return
	}
	if err := t.publish(); err != nil {
		t.warn(err)
	}
	t.found = t.describe(t.found.Took)
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

// replaced reports whether none of the files is mapped where it was: the process has called exec. One library that is gone
// was only unloaded.
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
