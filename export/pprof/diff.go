// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"fmt"
	"io"
	"time"

	"github.com/google/pprof/profile"
)

// baseLabel marks the samples of what is compared with, as pprof itself does for -diff_base: percentages are of their sum
// (github.com/google/pprof, profile.Sample.DiffBaseSample).
const baseLabel = "pprof::base"

// WriteDelta writes what happened in the time between two profiles of the same processes, as Go's own servers do for a profile with the
// parameter seconds: it subtracts before from after, per stack. The profiles are not changed.
func WriteDelta(w io.Writer, before, after *profile.Profile, took time.Duration) error {
	p, err := subtract(before.Copy(), after)
	if err != nil {
		return err
	}
	p.TimeNanos, p.DurationNanos, p.Comments = after.TimeNanos, took.Nanoseconds(), after.Comments
	return writeOut(w, p)
}

// WriteDiff writes what was added between two profiles: the samples of after, and those of before with their values negated.
// pprof shows of it what it shows of the two with -diff_base, and other tools the sums. The profiles are not changed. An error
// when they do not have the same values.
func WriteDiff(w io.Writer, before, after *profile.Profile) error {
	base := before.Copy()
	base.SetLabel(baseLabel, []string{"true"})
	p, err := subtract(base, after)
	if err != nil {
		return err
	}
	p.DurationNanos = 0 // else tools divide by it
	return writeOut(w, p)
}

// subtract returns the samples of after and the negated samples of base, which it changes. Samples with the same stack and labels are
// one. An error when they do not have the same values.
func subtract(base, after *profile.Profile) (*profile.Profile, error) {
	base.Scale(-1)
	p, err := profile.Merge([]*profile.Profile{after.Copy(), base})
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		return nil, fmt.Errorf("compare profiles: %w", err)
	}
	return p, nil
}

func writeOut(w io.Writer, p *profile.Profile) error {
	if err := p.Write(w); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return nil
}
