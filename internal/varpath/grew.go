// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Growth is a container that has more elements than at an earlier reading.
type Growth struct {
	Container string // its name, without the frame
	From, To  int    // number of elements
	Keys      bool   // it is a dictionary with keys that are texts or objects, as far as the name says
}

// IsQueue reports whether a queue.Queue or an asyncio.Queue has the container, by its name (Lib/queue.py, Lib/asyncio/queues.py).
func (g *Growth) IsQueue() bool {
	return strings.HasSuffix(g.Container, ".queue") || strings.HasSuffix(g.Container, "._queue")
}

// A container has grown if it has leastMore more elements, and one part in moreShare: single elements can come and go with a reading.
const (
	leastMore = 2
	moreShare = 20
)

// Grew compares two readings of what one container holds, and returns the container between its variable and its elements of which the
// number has grown most, in proportion. ok is false if none has grown, or if the names are not alike.
func Grew(before, now string) (g Growth, ok bool) {
	x, y := Parse(before), Parse(now)
	if Key(before) != Key(now) || len(x.Elements) != len(y.Elements) || slices.ContainsFunc(y.Elements, isOpen) {
		return g, false
	}
	most := 0.0
	for i := range y.Elements {
		from, _ := count(x.Elements[i])
		to, keys := count(y.Elements[i])
		if from == 0 || to < from+max(leastMore, from/moreShare) {
			continue
		}
		if ratio := float64(to) / float64(from); ratio > most {
			most, ok = ratio, true
			g = Growth{join(y.Elements[:i]), from, to, keys}
		}
	}
	return g, ok && g.Container != ""
}

// Many returns the container with the most elements in a name, if it has a number of them at least, and four times as many as any
// other, as Growth with From 0.
func Many(name string, least int) (g Growth, ok bool) {
	const clearly = 4
	p := Parse(name)
	second := 0
	for i, e := range p.Elements {
		if n, keys := count(e); n > g.To {
			second, g = g.To, Growth{join(p.Elements[:i]), 0, n, keys}
		} else {
			second = max(second, n)
		}
	}
	return g, g.To >= max(least, 1) && g.To >= clearly*second && g.Container != "" && !slices.ContainsFunc(p.Elements, isOpen)
}

// isOpen reports whether an element stands for several names, of which not all lead to the same containers.
func isOpen(element string) bool {
	return element == anyOf || element == "[*]" || element[0] != '[' && strings.Contains(element, "*")
}

var (
	counted   = regexp.MustCompile(`^\[(\d+) (keys|items)\b`)
	positions = regexp.MustCompile(`^\[(-?\d+)\.\.(-?\d+)\]$`)
	numbered  = regexp.MustCompile(`^\['([^']*?)(\d+)'\.\.'([^']*?)(\d+)'\]$`)
	oneKey    = regexp.MustCompile(`'(?:[^'\\]|\\.)*'`)
)

// Count returns the number of elements for which one of a name stands, such as "[0..7]"; 0: it is not known.
func Count(element string) int {
	n, _ := count(element)
	return n
}

// count is the number of elements that one of a name stands for; 0: it is not known. keys: they are keys of a dictionary.
func count(element string) (n int, keys bool) {
	if m := counted.FindStringSubmatch(element); m != nil {
		n, _ = strconv.Atoi(m[1])
		return n, m[2] == "keys"
	}
	if m := positions.FindStringSubmatch(element); m != nil {
		return between(m[1], m[2]), false
	}
	if m := numbered.FindStringSubmatch(element); m != nil && m[1] == m[3] {
		return between(m[2], m[4]), true
	}
	if !strings.HasPrefix(element, "[") || strings.Contains(element, "..") {
		return 0, false
	}
	if listed := oneKey.FindAllString(element, -1); listed != nil {
		return len(listed), true
	}
	return 1 + strings.Count(element, ", "), false
}

func between(first, last string) int {
	low, err := strconv.Atoi(first)
	high, err2 := strconv.Atoi(last)
	if err != nil || err2 != nil || high < low {
		return 0
	}
	return high - low + 1
}
