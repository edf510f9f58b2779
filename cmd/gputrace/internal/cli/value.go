// SPDX-License-Identifier: Apache-2.0

// Package cli extends github.com/urfave/cli/v2 for gputrace's command line: typed values that report errors when they
// are parsed, flags after arguments, suggestions for unknown words, and shell completion.
package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/internal/size"
	"github.com/gputrace/gputrace/internal/words"
)

// Value is the value of a flag; it implements cli.Generic. Giving a flag twice with different values is an error,
// unless its value is a list.
type Value[T any] struct {
	parse   func(string) (T, error)
	add     func(list, more T) T // nil: a single value
	choices []string             // nil: any
	value   T
	text    string
	set     bool
}

// errTwice means that a flag with a single value was given two.
var errTwice = errors.New("given twice")

// Set implements cli.Generic. The library sets a flag again, to its current text, under each of its other names.
func (v *Value[T]) Set(text string) error {
	if v.set && v.add == nil && text == v.text {
		return nil
	}
	if v.set && v.add == nil {
		return errTwice
	}
	value, err := v.parse(text)
	if err != nil {
		return err
	}
	if v.set {
		value, text = v.add(v.value, value), v.text+","+text
	}
	v.value, v.text, v.set = value, text, true
	return nil
}

// String returns the text of the value.
func (v *Value[T]) String() string {
	if v == nil {
		return ""
	}
	return v.text
}

// Choices returns the words that the value, or each of a list, can be; nil: any.
func (v *Value[T]) Choices() []string { return v.choices }

// IsList reports whether the flag can be given several times.
func (v *Value[T]) IsList() bool { return v.add != nil }

// Get returns the value of a flag of this package.
func Get[T any](c *cli.Context, name string) T {
	v, ok := c.Generic(name).(*Value[T])
	if !ok {
		panic(fmt.Sprintf("flag %s is no %T", name, v))
	}
	return v.value
}

// flag returns a flag with this value; initial is the text of its default, empty: the zero value. names are separated
// by commas, the long one first.
func (v *Value[T]) flag(names, initial, usage string) *cli.GenericFlag {
	if initial != "" {
		value, err := v.parse(initial)
		if err != nil {
			panic(fmt.Sprintf("flag %s: default %s: %v", names, initial, err))
		}
		v.value, v.text = value, initial
	}
	all := strings.Split(names, ",")
	return &cli.GenericFlag{Name: all[0], Aliases: all[1:], Value: v, Usage: usage}
}

// Text returns a flag with any text.
func Text(names, initial, usage string) cli.Flag {
	v := &Value[string]{parse: func(s string) (string, error) { return s, nil }}
	return v.flag(names, initial, usage)
}

// Files returns a flag with a file, which can be repeated.
func Files(names, usage string) cli.Flag {
	v := &Value[[]string]{parse: func(s string) ([]string, error) { return []string{s}, nil }}
	v.add = func(list, more []string) []string { return append(list, more...) }
	return v.flag(names, "", usage)
}

// Choice returns a flag with one of a few words; an empty initial value means none of them.
func Choice(names, initial, usage string, list []string) cli.Flag {
	v := &Value[string]{choices: list, parse: func(s string) (string, error) {
		if !slices.Contains(list, s) {
			return "", fmt.Errorf("not one of %s%s", Or(list), words.DidYouMean(s, list))
		}
		return s, nil
	}}
	return v.flag(names, initial, usage)
}

// Words returns a flag with a list of words, separated by commas, which check can reject; shells complete words.
func Words(names, initial, usage string, words []string, check func(string) error) cli.Flag {
	v := &Value[string]{choices: words, parse: func(s string) (string, error) { return s, check(s) }}
	return v.flag(names, initial, usage)
}

// Bytes returns a flag with a size; check, which may be nil, can reject it.
func Bytes(names, initial, usage string, check func(int) error) cli.Flag {
	v := &Value[int]{parse: func(s string) (int, error) {
		n, err := size.Parse(s)
		if err == nil && check != nil {
			err = check(int(n))
		}
		return int(n), err
	}}
	return v.flag(names, initial, usage)
}

// Duration returns a flag with a time from least to most, or 0, which means no limit. A number without a unit is in seconds.
func Duration(names, usage string, least, most time.Duration) cli.Flag {
	v := &Value[time.Duration]{parse: func(s string) (time.Duration, error) {
		d, err := moment.ParseOffset(s)
		switch {
		case err != nil || d < 0:
			return 0, errors.New("not a time, such as 10s")
		case d > 0 && d < least:
			return 0, fmt.Errorf("not a time of at least %s, or 0", least)
		case most > 0 && d > most:
			return 0, fmt.Errorf("more than %s", most)
		}
		return d, nil
	}}
	return v.flag(names, "", usage)
}

// Count returns a flag with a number of at least least; what names the counted things in errors.
func Count(names, initial, usage string, least int, what string) cli.Flag {
	v := &Value[int]{parse: func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return 0, fmt.Errorf("not a number of %s", what)
		}
		return n, nil
	}}
	return v.flag(names, initial, usage)
}

// Fraction returns a flag with a number above 0, up to 1.
func Fraction(names, usage string) cli.Flag {
	v := &Value[float64]{parse: func(s string) (float64, error) {
		if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 && n <= 1 {
			return n, nil
		}
		return 0, errors.New("not a number above 0, up to 1")
	}}
	return v.flag(names, "", usage)
}

// Parsed returns a flag with a text that parse reads.
func Parsed[T any](names, usage string, parse func(string) (T, error)) cli.Flag {
	v := &Value[T]{parse: parse}
	return v.flag(names, "", usage)
}

// Alerts returns a flag with thresholds, which can be repeated.
func Alerts(names, usage string) cli.Flag {
	v := &Value[[]alerts.Rule]{parse: func(s string) ([]alerts.Rule, error) {
		r, err := alerts.Parse(s)
		return []alerts.Rule{r}, err
	}}
	v.add = func(list, more []alerts.Rule) []alerts.Rule { return append(list, more...) }
	return v.flag(names, "", usage)
}

// Percent returns a flag with a percentage: 5%, also written 5.
func Percent(names, initial, usage string) cli.Flag {
	v := &Value[float64]{parse: func(s string) (float64, error) {
		n, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil || !(n >= 0 && n <= 1e6) {
			return 0, errors.New("not a part, such as 5%")
		}
		return n / 100, nil
	}}
	return v.flag(names, initial, usage)
}

// Address returns a flag with a device address.
func Address(names, usage string) cli.Flag {
	v := &Value[uint64]{parse: func(s string) (uint64, error) {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			return 0, errors.New("not an address, such as 0x7f2a80000000")
		}
		return n, nil
	}}
	return v.flag(names, "", usage)
}

// PID returns a flag with one process.
func PID(names, usage string) cli.Flag {
	return (&Value[int]{parse: ParsePID}).flag(names, "", usage)
}

// PIDs returns a flag with processes, separated by commas; it can be repeated. It ignores duplicates.
func PIDs(names, usage string) cli.Flag {
	v := &Value[[]int]{add: union, parse: func(s string) ([]int, error) {
		var out []int
		for text := range strings.SplitSeq(s, ",") {
			pid, err := ParsePID(text)
			if err != nil {
				return nil, err
			}
			out = union(out, []int{pid})
		}
		return out, nil
	}}
	return v.flag(names, "", usage)
}

func union(list, more []int) []int {
	for _, n := range more {
		if !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// ParsePID parses a process ID.
func ParsePID(s string) (int, error) {
	pid, err := strconv.ParseInt(s, 10, 32)
	if err != nil || pid <= 0 || pid > math.MaxInt32 {
		return 0, errors.New("not a process id")
	}
	return int(pid), nil
}

// Moment returns a flag with a moment of a recording.
func Moment(names, usage string) cli.Flag {
	return (&Value[moment.Moment]{parse: moment.Parse, choices: momentWords}).flag(names, "", usage)
}

// Moments returns a flag with moments, which can be repeated.
func Moments(names, usage string) cli.Flag {
	v := &Value[[]moment.Moment]{choices: momentWords, parse: func(s string) ([]moment.Moment, error) {
		m, err := moment.Parse(s)
		return []moment.Moment{m}, err
	}}
	v.add = func(list, more []moment.Moment) []moment.Moment { return append(list, more...) }
	return v.flag(names, "", usage)
}

// Steps returns a flag with a range of steps.
func Steps(names, usage string) cli.Flag {
	return (&Value[moment.StepRange]{parse: moment.ParseSteps}).flag(names, "", usage)
}

// momentWords are the moments that shells complete.
var momentWords = []string{"end", "peak", "oom"}

// Or returns "a, b or c".
func Or(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return strings.Join(words, "")
}
