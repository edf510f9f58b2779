// SPDX-License-Identifier: Apache-2.0

package moment

import (
	"errors"
	"fmt"
	"strings"
)

// StepRange is steps of a recording, from the first to the last. 0: from its first one on, or up to its last. The zero value is
// not given.
type StepRange struct{ First, Last int }

// ParseSteps reads "3:7", "3:" or ":7"; "5" is one step.
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

// String is the steps as they are written; of those that are not given it is empty.
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
