// SPDX-License-Identifier: Apache-2.0

// Package moment parses the points and ranges of a recording that a user can select: a time, the peak, the end, an out
// of memory, steps.
package moment

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Kind says how a Moment is specified.
type Kind uint8

// The kinds of moments.
const (
	// Unset: no moment was given. It means the end or, for outputs over time, the whole recording.
	Unset Kind = iota
	End
	Peak        // the peak of each device; a view of several devices shows each at its own peak
	SinceStart  // Offset since the recording began
	BeforeEnd   // Offset before the end
	TimeOfDay   // Clock
	OutOfMemory // the refused request of Number, from 1
	Step        // the end of the step of Number, from 1
)

// Usage describes, for people, how to write a moment.
const Usage = "peak, end, a time since the attach such as 12.5s, one before the end such as -3s, 2026-01-31T12:00:05Z, or " +
	"oom and oom:2 for the first and the second refused request, step:12 for the end of step 12"

// Moment is a point of a recording whose memory is shown. Flags and all outputs use this one type. A moment precedes
// the first event with a later time.
type Moment struct {
	Kind   Kind
	Offset time.Duration // at least 0
	Clock  time.Time
	Number int

	// Time is in CLOCK_BOOTTIME nanoseconds, set once the moment was found in a recording. For a peak, 0 means that
	// each device has its own, or that it was before the first event.
	Time uint64
}

// maxOffset is the longest offset that Parse accepts, seconds.
const maxOffset = 1e9

// Parse reads a moment in one of the forms of Usage.
func Parse(text string) (Moment, error) {
	word, number, numbered := strings.Cut(text, ":")
	switch {
	case text == "end":
		return Moment{Kind: End}, nil
	case text == "peak":
		return Moment{Kind: Peak}, nil
	case text == "oom":
		return Moment{Kind: OutOfMemory, Number: 1}, nil
	case numbered && (word == "oom" || word == "step"):
		if n, ok := parseNumber(number); ok {
			return Moment{Kind: map[string]Kind{"oom": OutOfMemory, "step": Step}[word], Number: n}, nil
		}
	}
	if d, err := ParseOffset(text); err == nil && d > math.MinInt64 {
		if strings.HasPrefix(text, "-") {
			return Moment{Kind: BeforeEnd, Offset: -d}, nil
		}
		return Moment{Kind: SinceStart, Offset: d}, nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return Moment{Kind: TimeOfDay, Clock: at}, nil
	}
	return Moment{}, fmt.Errorf("not a moment: %s", Usage)
}

// parseNumber reads a number of at least 1.
func parseNumber(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && n > 0
}

// ParseOffset reads a duration such as 1.5s or 2h, or a number of seconds.
func ParseOffset(text string) (time.Duration, error) {
	if s, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(s) < maxOffset {
		return time.Duration(s * 1e9), nil
	}
	return time.ParseDuration(text)
}

// String returns the moment as a user would write it; "" when Unset.
func (m Moment) String() string {
	switch m.Kind {
	case End:
		return "end"
	case Peak:
		return "peak"
	case SinceStart:
		return m.Offset.String()
	case BeforeEnd:
		return "-" + m.Offset.String()
	case TimeOfDay:
		return m.Clock.Format(time.RFC3339Nano)
	case OutOfMemory:
		return fmt.Sprintf("oom:%d", m.Number)
	case Step:
		return fmt.Sprintf("step:%d", m.Number)
	}
	return ""
}

// IsTime reports whether the moment is neither the end nor the peak, so that only events up to Time count.
func (m Moment) IsTime() bool { return m.Kind > Peak }
