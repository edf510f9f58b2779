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
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// refreshIfDue reads the target's mappings from time to time, for what nothing announces: memory that another process which
// shares it has mapped.
func (t *Target) refreshIfDue() {
	if t.tracer.detached || time.Since(t.lastRefresh) < t.refreshInterval() {
		return
	}
	t.releaseIfQuiet()
	t.refresh()
}

// refreshTries is how often the mappings are read again when the code changes meanwhile.
const refreshTries = 4

// refresh follows the target's mappings: libraries that it loads get unwind rows and probes. When there is no room in the kernel
// for another list, it gets to know them later.
func (t *Target) refresh() {
	t.lastRefresh, t.unknownCode = time.Now(), false
	for try := 1; t.readMappings(); try++ {
		if !t.unpublished {
			t.retryPython()
			return
		}
		if _, err := t.tracer.kernel.FreeInfo(); err != nil {
			t.crowdedOut(err)
			return
		}
		if t.python == nil {
			t.findPython()
		}
		err := t.publish(try == refreshTries)
		if errors.Is(err, kernel.ErrCodeChanged) {
			continue
		}
		t.unpublished = false
		if err != nil {
			t.tracer.warn(err)
			return
		}
		t.hookLate()
		return
	}
}

// followMappings takes new mappings over. Of those that were there before, what has not been covered is still known by its name.
func (t *Target) followMappings(maps []process.Mapping) {
	t.regions = t.code.Regions(maps)
	for i := range t.regions {
		r := &t.regions[i]
		if over := mapped.Overlapping(t.known, r); len(over) == 1 && over[0].Mapping == r.Mapping && over[0].File == r.File {
			r.Since = over[0].Since
		} else if len(over) > 0 {
			r.Since = t.changes
		}
	}
	known := slices.Clone(t.regions)
	reused := false
	for _, old := range t.known {
		over := mapped.Overlapping(t.regions, &old)
		if len(over) == 0 {
			known = append(known, old)
		}
		reused = reused || slices.ContainsFunc(over, func(r mapped.Region) bool { return r.File != old.File || r.Bias != old.Bias })
	}
	if reused {
		t.reused++
	}
	sorts.Func(known, func(a, b mapped.Region) int { return cmp.Compare(a.Start, b.Start) })
	t.known = known
}

// knownAt finds the mapping of a pc in a stack that was read just now. The mappings can be newer than it.
func (t *Target) knownAt(pc uint64) *mapped.Region {
	r := mapped.Find(t.known, pc)
	if r == nil || r.Since > t.reached {
		return nil
	}
	return r
}

// watchLinkers places a probe where a dynamic linker reports that libraries came or went, in those of a process that were not seen
// before. Without one, the first stack that is captured afterwards shows it. A static program has no linker.
func (tr *Tracer) watchLinkers(p *process.Process, regions []mapped.Region) error {
	for i := range regions {
		r := &regions[i]
		if r.File.Symbols != nil && isLinker(r.Path) {
			if err := tr.watchLinkerIn(r, kernel.OpenMapped(p, &r.Mapping), tr.scope(p)); err != nil {
				return err
			}
		}
	}
	return nil
}

// watchLinkerIn does so in one file: in the memory of one process, nil: in that of each that maps it.
func (tr *Tracer) watchLinkerIn(r *mapped.Region, open kernel.Opener, in *process.Process) error {
	sym, ok := r.File.Symbols.Find(kernel.LinkerBreak)
	if !ok {
		return nil
	}
	at, ok := r.File.Symbols.FileOffset(sym.Addr)
	if !ok || tr.linkers[r.File.ID] {
		return nil
	}
	l, err := tr.kernel.AttachLinker(open, at, pidOf(in))
	if err != nil {
		return fmt.Errorf("attach to %s in %s: %w", kernel.LinkerBreak, r.Path, err)
	}
	tr.linkers[r.File.ID] = true
	tr.probes.Links = append(tr.probes.Links, l)
	return nil
}

// isLinker reports whether a file is named as the dynamic linkers of glibc and musl are.
func isLinker(file string) bool {
	base := path.Base(file)
	return strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "ld-2.") || base == "libc.so"
}

// refreshFor reads the mappings for an address that is in none that is known, unless that found nothing a moment ago. It
// reports whether the address is in one now. The kernel gets to know them when a refresh is due: it can follow only so many.
func (t *Target) refreshFor(pc uint64) bool {
	if t.tracer.detached || pc == t.missing && time.Since(t.lastRefresh) < refreshEvery {
		return false
	}
	t.unknownCode = true
	if t.refreshIfDue(); mapped.Find(t.regions, pc) == nil {
		t.readMappings()
	}
	if mapped.Find(t.regions, pc) == nil {
		t.missing = pc
		return false
	}
	return true
}

// readMappings brings the regions up to date. It reports whether the target could be read.
func (t *Target) readMappings() bool {
	changes, pages := t.tracer.kernel.CodeChanges(&t.place), t.process.CodePages()
	maps, err := t.process.Maps()
	if err != nil || len(maps) == 0 {
		return false // it is just ending; exitWatch reports it
	}
	if changes == t.changes && mapped.Same(t.regions, maps) {
		return true
	}
	t.changes, t.pages = changes, pages
	t.lastChange = time.Now()
	t.followMappings(maps)
	t.records.LookedUp()
	t.unpublished = true
	return true
}

// releaseIfQuiet releases the memory that unwind tables and names took to make, once no name was looked up for a while:
// most stacks are seen in the first seconds.
func (t *Target) releaseIfQuiet() {
	if !t.records.Quiet(quietFor) {
		return
	}
	t.code.Release()
	go debug.FreeOSMemory() // events must not wait for it
}

// hookLate adds the probes of libraries that were loaded after the attach.
func (t *Target) hookLate() {
	probes, _ := t.discover() // what was there before is still there
	before := len(t.tracer.probes.All)
	if err := t.attach(probes); err != nil {
		t.tracer.warn(err)
	}
	if err := t.tracer.watchLinkers(t.process, t.regions); err != nil {
		t.tracer.warn(err)
	}
	t.tracer.notices = append(t.tracer.notices, loadedNotices(t.tracer.probes.All[before:])...)
	t.found = t.describe(t.found.Took)
}

// loadedNotices describes new probes, a line a file.
func loadedNotices(probes []*kernel.Probe) []string {
	var out []string
	for _, file := range kernel.ByFile(probes) {
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
func (t *Target) refreshInterval() time.Duration {
	switch {
	case t.unknownCode || time.Since(t.lastChange) < loadingFor:
		return refreshSoon
	default:
		return refreshEvery
	}
}

// retryPython finds an interpreter that was there before but just starting. Another one can only come with new code.
func (t *Target) retryPython() {
	if t.python != nil || !errors.Is(t.found.PythonErr, cpython.ErrNotReady) {
		return
	}
	if t.findPython(); t.python == nil {
		return
	}
	if err := t.publish(true); err != nil {
		t.tracer.warn(err)
	}
	t.found = t.describe(t.found.Took)
}

// crowdedOut notes that there is no room for the process's mappings: it uses those of its parent, or by none, until another
// process has ended.
func (t *Target) crowdedOut(err error) {
	if !t.tracer.crowded {
		t.tracer.crowded = true
		t.tracer.warn(fmt.Errorf("stacks of some processes are not complete: %w", err))
	}
}
