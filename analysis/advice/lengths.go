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

// See sets Was and Moved of what a reading says about containers of a name. time is when it was made, nanoseconds.
func (l *Lengths) See(name string, now *Facts, time uint64) {
	if now.Most == 0 {
		return
	}
	key := varpath.Key(name)
	was, ok := l.first[key]
	switch {
	case !ok:
		if l.first == nil {
			l.first = map[string]firstFacts{}
		}
		l.first[key] = firstFacts{*now, time}
	case was.time == time:
	case was.Most < now.Most || !now.State && now.Each > was.Each+was.Each/elementShare: // parameters differ in size
		now.Moved = true
	case was.Most == now.Most:
		now.Was = was.Length
	}
}
