// SPDX-License-Identifier: Apache-2.0

package moment

import (
	"errors"
	"fmt"
	"strings"
)

// StepRange is a range of steps of a recording, including both ends. A First of 0 means the recording's first step, a
// Last of 0 its last. The zero value means that no range was given.
type StepRange struct{ First, Last int }

// ParseSteps reads "3:7", "3:", ":7", or "5" for one step.
func ParseSteps(text string) (StepRange, error) {
	first, last, ranged := strings.Cut(text, ":")
	if !ranged {
		last = first
	}
	var out StepRange
	for _, end := range []struct {
		text string
		to   *int
	}{{first, &out.First}, {last, &out.Last}} {
		if end.text == "" && ranged {
			continue
		}
		n, ok := parseNumber(end.text)
		if !ok {
			return StepRange{}, errors.New("not steps, such as 3:7, 3: or :7")
		}
		*end.to = n
	}
	if out == (StepRange{}) || out.Last != 0 && out.First > out.Last {
		return StepRange{}, errors.New("not steps from one to a later one, such as 3:7")
	}
	return out, nil
}

// String returns the steps as a user would write them; "" for the zero value.
func (r StepRange) String() string {
	text := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	switch {
	case r == StepRange{}:
		return ""
	case r.First == r.Last:
		return text(r.First)
	}
	return text(r.First) + ":" + text(r.Last)
}
