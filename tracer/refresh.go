// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

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

// refreshIfDue regularly reads the target's mappings, for changes that nothing announces: mappings made by another
// process that shares the memory.
func (t *Target) refreshIfDue() {
	if t.tracer.detached || time.Since(t.lastRefresh) < t.refreshInterval() {
		return
	}
	t.releaseIfQuiet()
	t.refresh()
}

// refreshTries is how often the mappings are read again if the code changes in the meantime.
const refreshTries = 4

// refresh updates the target's mappings: newly loaded libraries get unwind rows and probes. If the kernel has no room
// for another list of mappings, it receives the list later.
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
		if t.python == nil || t.maybeBound() {
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

// followMappings stores new mappings. Old ones remain known for symbol names, unless new ones cover them.
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

// knownAt returns the mapping of a pc in a stack that was just read. The mappings can be newer than the stack.
func (t *Target) knownAt(pc uint64) *mapped.Region {
	r := mapped.Find(t.known, pc)
	if r == nil || r.Since > t.reached {
		return nil
	}
	return r
}

// watchLinkers places a probe in a process's new dynamic linkers, where they report loaded and unloaded libraries.
// Without the probe, the next captured stack shows the change. A static program has no linker.
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

// watchLinkerIn does so in one file, in the memory of one process or, with nil, of every process that maps the file.
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

// isLinker reports whether the name of a file is that of a dynamic linker of glibc or musl.
func isLinker(file string) bool {
	base := path.Base(file)
	return strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "ld-2.") || base == "libc.so"
}

// refreshFor reads the mappings for an address in no known mapping, unless it just did so without a result. It reports
// whether the address is in a mapping now. The kernel receives the list when a refresh is due, because it can handle
// only a limited number of updates.
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

// readMappings updates the regions. It reports whether the target could be read.
func (t *Target) readMappings() bool {
	changes, pages := t.tracer.kernel.CodeChanges(&t.place), t.process.CodePages()
	maps, err := t.process.Maps()
	if err != nil || len(maps) == 0 {
		return false // the target is exiting; exitWatch reports it
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

// releaseIfQuiet frees the memory used for creating unwind tables and names, once no name was looked up for a while:
// most stacks appear in the first seconds.
func (t *Target) releaseIfQuiet() {
	if !t.records.Quiet(quietFor) {
		return
	}
	t.code.Release()
	go debug.FreeOSMemory() // events must not wait
}

// hookLate adds the probes of libraries that were loaded after the attach.
func (t *Target) hookLate() {
	probes, _ := t.discover() // existing probes are found again
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

// loadedNotices describes new probes, one line per file.
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

// refreshInterval returns the time between two readings of the mappings. It is short while libraries are being loaded,
// or after a stack with unknown code.
func (t *Target) refreshInterval() time.Duration {
	switch {
	case t.unknownCode || time.Since(t.lastChange) < loadingFor:
		return refreshSoon
	default:
		return refreshEvery
	}
}

// retryPython searches again for an interpreter that was still starting, or for the one that PyTorch is bound to while PyTorch is being
// loaded. Any other one can only come with new code.
func (t *Target) retryPython() {
	starting := t.python == nil && errors.Is(t.found.PythonErr, cpython.ErrNotReady)
	if !starting && !t.maybeBound() || !t.findPython() {
		return
	}
	if err := t.publish(true); err != nil {
		t.tracer.warn(err)
	}
	t.found = t.describe(t.found.Took)
}

// crowdedOut records that the kernel has no room for the process's mappings: until another process ends, it uses its
// parent's, or none.
func (t *Target) crowdedOut(err error) {
	if !t.tracer.crowded {
		t.tracer.crowded = true
		t.tracer.warn(fmt.Errorf("stacks of some processes are not complete: %w", err))
	}
}
