// SPDX-License-Identifier: Apache-2.0

package advice

import "github.com/gputrace/gputrace/internal/varpath"

// Lengths remembers how many elements containers with a bound had when they were first read.
type Lengths struct {
	first map[string]firstFacts // by varpath.Key of their name
}

// firstFacts are the facts of the first reading, and its time.
type firstFacts struct {
	Facts
	time uint64
}

// elementShare: if an element of a container holds more than 1/elementShare more than at first, it may grow by itself.
const elementShare = 4

// Was returns the number of elements that containers of a name had when they were first read; 0: it is not known, they are others, or this
// is the first reading. now is what a reading says about them, and time when it was made, nanoseconds.
func (l *Lengths) Was(name string, now *Facts, time uint64) uint64 {
	if now.Most == 0 {
		return 0
	}
	key := varpath.Key(name)
	was, ok := l.first[key]
	if !ok {
		if l.first == nil {
			l.first = map[string]firstFacts{}
		}
		l.first[key] = firstFacts{*now, time}
		return 0
	}
	if was.time == time || was.Most != now.Most || now.Each > was.Each+was.Each/elementShare {
		return 0
	}
	return was.Length
}
