// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/kineto"
	"github.com/gputrace/gputrace/export/perfetto"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
)

// wallClock is the least time of a trace that counts from 1970, Unix nanoseconds: in 2001. For some weeks of 2024, Kineto counted from a
// moment that it did not write (its commits 327ac505 and 84d95b82).
const wallClock = 1e18

// CheckProfiles checks in advance whether traces of torch.profiler can be merged: into one of the formats, from files that exist.
func CheckProfiles(files []string, formats []Format) error {
	if len(files) > 0 && !slices.ContainsFunc(formats, func(f Format) bool { return f.Name == "perfetto" }) {
		return exit.Usage("--with: only -f perfetto takes a trace of torch.profiler")
	}
	for i, file := range files {
		st, err := os.Stat(file)
		switch {
		case err != nil:
			return exit.Usage("--with: %w", err)
		case st.IsDir():
			return exit.Usage("--with %s: this is a folder; give the trace in it, such as *.pt.trace.json", file)
		case slices.Contains(files[:i], file):
			return exit.Usage("--with %s: the file is given twice", file)
		}
	}
	return nil
}

// addProfiles reads the traces of torch.profiler that are to be merged, and warns of those that do not belong to the recording.
func addProfiles(in *Input, p *perfetto.Input, tl *view.Timeline) error {
	if len(in.Profiles) == 0 {
		return nil
	}
	if in.Info.StartedBoot == 0 || in.Info.Started.UnixNano() <= 0 {
		return exit.With(exit.Invalid,
			fmt.Errorf("--with: %s does not contain the time of day, so its times cannot be compared with the profiler's", in.Path))
	}
	if in.Selection.To != 0 {
		p.ProfileFrom, p.ProfileTo = tl.From, tl.To
	}
	boot := in.Info.Started.UnixNano() - int64(in.Info.StartedBoot) // Unix nanoseconds at which CLOCK_BOOTTIME was 0
	for _, file := range in.Profiles {
		k, err := kineto.Open(file)
		switch {
		case errors.Is(err, kineto.ErrFormat):
			return exit.With(exit.Invalid, fmt.Errorf("--with: %w", err))
		case err != nil:
			return exit.With(exit.Error, fmt.Errorf("--with: %w", err))
		case k.Events == 0:
			in.Warn(fmt.Errorf("--with %s: the trace has no events", file))
			continue
		}
		when := fmt.Sprintf("the trace covers %s, the recording %s", during(k.From, k.To), during(boot+int64(tl.From), boot+int64(tl.To)))
		switch {
		case k.To < wallClock:
			return exit.With(exit.Invalid, fmt.Errorf("--with %s: no baseTimeNanoseconds, so its times are unknown: use another PyTorch", file))
		case k.To < boot:
			return exit.With(exit.Invalid, fmt.Errorf("--with %s: the trace ended before the machine of the recording was started: %s", file, when))
		case k.To < boot+int64(tl.From) || k.From > boot+int64(tl.To):
			in.Warn(fmt.Errorf("--with %s: the trace and the recording have no moment in common: %s", file, when))
		}
		warnProfile(in, k)
		p.Profiles = append(p.Profiles, k)
		p.Attributes = append(p.Attributes, perfetto.Attribute{Key: "gputrace.with", Text: words.Line(filepath.Base(file))})
	}
	return nil
}

// warnProfile warns of a trace of another process, and of what it has that is not shown.
func warnProfile(in *Input, k *kineto.Trace) {
	var others []int64
	for _, row := range k.Rows {
		if pid := row.Process.PID; pid != 0 && !slices.Contains(others, pid) {
			others = append(others, pid)
		}
	}
	if len(others) > 0 && !slices.Contains(others, int64(in.Info.PID)) {
		in.Warn(fmt.Errorf("--with %s: the trace is of process %d, the recording of process %d: each has its own tracks "+
			"(in a container, the numbers differ)", k.Path, others[0], in.Info.PID))
	}
	for _, what := range slices.Sorted(maps.Keys(k.LeftOut)) {
		in.Warn(fmt.Errorf("--with %s: left out: %s: %d", k.Path, what, k.LeftOut[what]))
	}
}

// during returns a range of time for people; its ends are Unix nanoseconds.
func during(from, to int64) string {
	const layout = "2006-01-02 15:04:05.000"
	return time.Unix(0, from).UTC().Format(layout) + " to " + time.Unix(0, to).UTC().Format(layout) + " UTC"
}
