// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/process"
)

// refreshIfDue reads the target's mappings from time to time, for what nothing announces: memory that another process which
// shares it has mapped.
func (t *Tracer) refreshIfDue() {
	if t.detached || time.Since(t.lastRefresh) < t.refreshInterval() {
		return
	}
	t.releaseIfQuiet()
	t.refresh()
}

// refreshTries is how often the mappings are read again when the code changes meanwhile.
const refreshTries = 4

// refresh follows the target's mappings: libraries that it loads get unwind rows and probes. When there is no room in the kernel
// for another list, it gets to know them later.
func (t *Tracer) refresh() {
	t.lastRefresh, t.unknownCode = time.Now(), false
	for try := 1; t.readMappings(); try++ {
		if !t.unpublished {
			t.retryPython()
			return
		}
		if _, err := t.kernel.freeInfo(); err != nil {
			t.crowdedOut(err)
			return
		}
		if t.python == nil {
			t.findPython()
		}
		err := t.publish(try == refreshTries)
		if errors.Is(err, errCodeChanged) {
			continue
		}
		t.unpublished = false
		if err != nil {
			t.warn(err)
			return
		}
		t.hookLate()
		return
	}
}

// followMappings takes new mappings over. Of those that were there before, what has not been covered is still known by its name.
func (t *Tracer) followMappings(maps []process.Mapping) {
	t.regions = t.objects.regions(maps)
	for i := range t.regions {
		r := &t.regions[i]
		if over := overlapping(t.known, r); len(over) == 1 && over[0].Mapping == r.Mapping && over[0].object == r.object {
			r.since = over[0].since
		} else if len(over) > 0 {
			r.since = t.changes
		}
	}
	known := slices.Clone(t.regions)
	reused := false
	for _, old := range t.known {
		over := overlapping(t.regions, &old)
		if len(over) == 0 {
			known = append(known, old)
		}
		reused = reused || slices.ContainsFunc(over, func(r region) bool { return r.object != old.object || r.bias != old.bias })
	}
	if reused {
		t.reused++
	}
	slices.SortFunc(known, func(a, b region) int { return cmp.Compare(a.Start, b.Start) })
	t.known = known
}

// knownAt finds the mapping of a pc in a stack that was read just now. The mappings can be newer than it.
func (t *Tracer) knownAt(pc uint64) *region {
	r := findRegion(t.known, pc)
	if r == nil || r.since > t.reached {
		return nil
	}
	return r
}

// overlapping gives those of a sorted list that share an address with a region.
func overlapping(sorted []region, r *region) []region {
	from, _ := slices.BinarySearchFunc(sorted, r.Start, func(s region, start uint64) int {
		if s.End <= start {
			return -1
		}
		return 1
	})
	to := from
	for to < len(sorted) && sorted[to].Start < r.End {
		to++
	}
	return sorted[from:to]
}

// linkerBreak is the function that the dynamic linker calls when it has added or removed libraries, of glibc and of musl (link.h,
// r_brk).
const linkerBreak = "_dl_debug_state"

// watchLinker places a probe where the dynamic linker tells that libraries came or went. Without one, the first stack that is
// captured afterwards shows it. A static program has no linker.
func (t *Tracer) watchLinker() error {
	for i := range t.regions {
		r := &t.regions[i]
		if r.object.file != nil && isLinker(r.Path) {
			if err := t.watchLinkerIn(r, openMapped(t.target, &r.Mapping)); err != nil {
				return err
			}
		}
	}
	return nil
}

// watchLinkerIn does so in one file.
func (s *Session) watchLinkerIn(r *region, open opener) error {
	sym, ok := r.object.file.Find(linkerBreak)
	if !ok {
		return nil
	}
	at, ok := r.object.file.FileOffset(sym.Addr)
	if !ok || s.linkers[r.object.id] {
		return nil
	}
	l, err := s.kernel.attachLinker(open, at, s.scope())
	if err != nil {
		return fmt.Errorf("attach to %s in %s: %w", linkerBreak, r.Path, err)
	}
	s.linkers[r.object.id] = true
	s.probes.links = append(s.probes.links, l)
	return nil
}

// isLinker reports whether a file is named as the dynamic linkers of glibc and musl are.
func isLinker(file string) bool {
	base := path.Base(file)
	return strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "ld-2.") || base == "libc.so"
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

// readMappings brings the regions up to date. It reports whether the target could be read.
func (t *Tracer) readMappings() bool {
	changes, pages := t.kernel.codeChanges(t.member), t.target.CodePages()
	maps, err := t.target.Maps()
	if err != nil || len(maps) == 0 {
		return false // it is just ending; exitWatch tells
	}
	if changes == t.changes && sameCode(t.regions, maps) {
		return true
	}
	t.changes, t.pages = changes, pages
	t.lastChange = time.Now()
	t.followMappings(maps)
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
	if err := t.watchLinker(); err != nil {
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
	if err := t.publish(true); err != nil {
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

// crowdedOut notes that there is no room for the process's mappings: it goes by those of its parent, or by none, until another
// process has ended.
func (t *Tracer) crowdedOut(err error) {
	if !t.Session.crowded {
		t.Session.crowded = true
		t.warn(fmt.Errorf("stacks of some processes are not complete: %w", err))
	}
}
