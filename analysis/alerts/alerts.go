// SPDX-License-Identifier: Apache-2.0

// Package alerts has the thresholds that a recording is watched for while it runs: what they are, when one is exceeded, and how often it
// is repeated. The figures are those of other packages.
package alerts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/size"
)

// Kind is what a threshold is of.
type Kind string

// The kinds.
const (
	Use           Kind = "use"           // bytes of a device that the process uses, also as a part of the device
	Growth        Kind = "growth"        // requested bytes that the memory grows by each step
	Fragmentation Kind = "fragmentation" // free memory of segments in use, as a part of what is reserved
	Allocation    Kind = "allocation"    // bytes of one request
)

// Rule is a threshold.
type Rule struct {
	Kind  Kind
	Text  string  // as it was given
	Bound float64 // bytes, bytes a step, or a part: 0.9
	Part  bool
}

// Usage is the form of a rule, for people.
const Usage = "use>90%, use>20GiB, growth>1MiB/step, fragmentation>30% or allocation>4GiB"

// Parse reads a rule.
func Parse(text string) (Rule, error) {
	kind, bound, ok := strings.Cut(strings.ReplaceAll(text, " ", ""), ">")
	r := Rule{Kind: Kind(kind), Text: text}
	percent, isPart := strings.CutSuffix(bound, "%")
	switch {
	case !ok:
		return r, errors.New("not an alert, such as " + Usage)
	case isPart && (r.Kind == Use || r.Kind == Fragmentation):
		n, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(n >= 0 && n <= 100) {
			return r, fmt.Errorf("%q is no part, such as 90%%", bound)
		}
		r.Bound, r.Part = n/100, true
		return r, nil
	case r.Kind == Growth:
		bound = strings.TrimSuffix(bound, "/step")
	case r.Kind != Use && r.Kind != Allocation:
		return r, errors.New("not an alert, such as " + Usage)
	}
	n, err := size.Parse(bound)
	if err != nil {
		return r, fmt.Errorf("%q is %w", bound, err)
	}
	r.Bound = float64(n)
	return r, nil
}

// Exceeded reports whether a figure is above the threshold; what is not known, NaN, is not.
func (r *Rule) Exceeded(measured float64) bool { return measured > r.Bound }

// Site is a line and what it has.
type Site struct {
	Line   view.Call
	Bytes  uint64 // in use; of growth, what grew and is in use
	Blocks uint64
	Holder string // empty: not known
}

// Alert is a threshold that was exceeded.
type Alert struct {
	Rule     Rule
	Process  string // "rank 0, pid 42"
	PID      int
	Time     time.Time
	Boottime uint64 // CLOCK_BOOTTIME nanoseconds, of the events
	Step     int    // 0: not known
	Device   string // empty: of all
	Measured float64
	// Since is how often it was exceeded and not shown since the last alert of this rule and device.
	Since uint64
	Sites []Site // the largest lines; of an allocation, the one that asks
}

// Limiter bounds how often a rule is shown. It is used by one goroutine.
type Limiter struct {
	every time.Duration
	last  map[string]time.Time
	since map[string]uint64
}

// NewLimiter shows each rule of each device at most once in a time.
func NewLimiter(every time.Duration) *Limiter {
	return &Limiter{every: every, last: map[string]time.Time{}, since: map[string]uint64{}}
}

// Allow reports whether a rule may be shown now, and how often it was not since the last time.
func (l *Limiter) Allow(r *Rule, device string, now time.Time) (since uint64, ok bool) {
	key := r.Text + "\n" + device
	if last, shown := l.last[key]; shown && now.Sub(last) < l.every {
		l.since[key]++
		return 0, false
	}
	since = l.since[key]
	l.last[key], l.since[key] = now, 0
	return since, true
}
