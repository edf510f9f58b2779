//go:build linux

package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"path"
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
	t.refresh()
}

// refreshTries is how often the mappings are read again when code is mapped meanwhile.
const refreshTries = 4

// refresh follows the target's mappings: libraries that it loads get unwind rows and probes. When there is no room in the kernel
// for another list it is left for later.
func (t *Tracer) refresh() {
	if _, ok := t.kernel.freeSlot(); !ok {
		t.unknownCode = true
		return
	}
	t.lastRefresh, t.unknownCode = time.Now(), false
	for try := 1; ; try++ {
		err := t.readMappings(try == refreshTries)
		if err == nil || !errors.Is(err, errCodeChanged) {
			if err != nil {
				t.warn(err)
			}
			return
		}
	}
}

// readMappings reads the mappings and gives the kernel those that have changed.
func (t *Tracer) readMappings(force bool) error {
	before := t.changes
	t.changes, t.pages = t.kernel.codeChanges(), t.target.CodePages()
	maps, err := t.target.Maps()
	if err != nil || len(maps) == 0 {
		return nil // it is just ending; exitWatch tells
	}
	if t.changes == before && sameCode(t.regions, maps) {
		t.retryPython()
		return nil
	}
	t.lastChange = time.Now()
	t.follow(maps)
	if t.python == nil {
		t.findPython()
	}
	if err := t.publish(force); err != nil {
		return err
	}
	t.hookLate()
	return nil
}

// follow takes new mappings over. Of those that were there before, what has not been covered is still known by its name.
func (t *Tracer) follow(maps []process.Mapping) {
	t.regions = t.objects.regions(maps)
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
// captured afterwards shows it.
func (t *Tracer) watchLinker() error {
	for i := range t.regions {
		r := &t.regions[i]
		if r.object.file == nil || !r.isLinker() {
			continue
		}
		sym, ok := r.object.file.Find(linkerBreak)
		if !ok {
			continue
		}
		at, ok := r.object.file.FileOffset(sym.Addr)
		if !ok {
			continue
		}
		l, err := t.kernel.attachLinker(t.target.FilePath(&r.Mapping), at, t.target.PID)
		if err != nil {
			return fmt.Errorf("attach to %s in %s: %w", linkerBreak, r.Path, err)
		}
		t.probes.links = append(t.probes.links, l)
		return nil
	}
	return nil // a static program
}

// isLinker reports whether a file is named as the dynamic linkers of glibc and musl are.
func (r *region) isLinker() bool {
	base := path.Base(r.Path)
	return strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "ld-2.") || base == "libc.so"
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
