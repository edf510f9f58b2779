// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// someElements stands for elements of containers.
const someElements = "[…]"

// Fit shortens a name to a width in characters, so that it still tells what to look for: the line goes first, then the function, then which
// elements of the last attribute they are, then the keys of dictionaries except for their number, then the elements of one container before
// it, then those of all before it, then what lies between the variable and the last attribute, then the elements of all containers. It is
// Readable.
func Fit(name string, width int) string {
	return strings.ReplaceAll(shorten(name, width), anyOf+anyOf, anyOf)
}

func shorten(name string, width int) string {
	name = InProgram(Readable(name))
	p := Parse(name)
	if fits(name, width) || len(p.Elements) == 0 {
		return cut(name, width)
	}
	if _, function, ok := strings.Cut(p.Where, " "); ok {
		if short := (Path{function, p.Elements}).String(); fits(short, width) {
			return short
		}
	}
	e := withoutFrames(withoutCode(p.Elements))
	if path := join(e); fits(path, width) {
		return path
	}
	if e[len(e)-1] != graph && strings.HasPrefix(e[len(e)-1], graph) && len(e) > 1 { // that it is a graph, its advice says
		kept := e[:len(e)-1]
		if short := fitBetween(kept, lastAttribute(kept), width-1); short != "" {
			return short + anyOf
		}
	}
	e = starred(e)
	last, counted := lastAttribute(e), countedKeys(e)
	for _, short := range [][]string{e, withoutLastIndices(e, last), counted, withoutLastIndices(counted, last)} {
		if fits(join(short), width) {
			return join(short)
		}
	}
	if short := withoutOneIndex(e, last, width); short != "" {
		return short
	}
	for _, keys := range []bool{true, false} {
		if short := withoutIndices(e, last, keys); fits(short, width) {
			return short
		}
	}
	if short := fitBetween(e, last, width); short != "" {
		return short
	}
	if short := fitLongest(e, width); short != "" {
		return short
	}
	closed := []string{e[0]}
	for i, x := range e[1:] {
		switch {
		case x[0] != '[' && i+1 <= last:
			closed = append(closed, x)
		case x[0] == '[' && closed[len(closed)-1] != someElements:
			closed = append(closed, someElements)
		}
	}
	last = lastAttribute(closed)
	if short := fitBetween(closed, last, width); short != "" {
		return short
	}
	if short := fitBetween(closed[:last+1], last, width); short != "" {
		return short
	}
	return cut(join([]string{closed[0], anyOf, closed[last]}), width)
}

// runner begins the place of the frame of asyncio.run(), whose only variable of interest is the program's own main coroutine
// (Lib/asyncio/runners.py).
const runner = "runners.py:"

// InProgram begins a path in the program's main coroutine in place of the frame of asyncio.run() that waits for it.
func InProgram(name string) string {
	if !strings.HasPrefix(name, runner) {
		return name
	}
	p := Parse(name)
	if len(p.Elements) < 3 || !strings.HasPrefix(p.Elements[1], suspended) {
		return name
	}
	where := strings.TrimSuffix(strings.TrimPrefix(p.Elements[1], suspended), " local")
	return Path{where, slices.Concat([]string{strings.TrimPrefix(p.Elements[2], " ")}, p.Elements[3:])}.String()
}

// withoutCode leaves out where the code of a hook is.
func withoutCode(elements []string) []string {
	words := strings.Split(ownHook.FindString(elements[0]), " ")
	if len(words) < 3 {
		return elements
	}
	return slices.Concat([]string{words[0] + " " + words[2]}, elements[1:])
}

// withoutLastIndices leaves out which elements of the last attribute they are, where those are numbers: they say
// less than an attribute before it.
func withoutLastIndices(e []string, last int) []string {
	if last == 0 || last+2 != len(e) || strings.HasPrefix(e[last+1], "['") {
		return e
	}
	return slices.Concat(e[:last+1], []string{someElements})
}

// countedKeys says how many keys of dictionaries there are, where several are listed.
func countedKeys(e []string) []string {
	out := slices.Clone(e)
	for i, x := range out {
		if n := Count(x); n > 1 && strings.HasPrefix(x, "['") {
			out[i] = fmt.Sprintf("[%d keys]", n)
		}
	}
	return out
}

// withoutOneIndex leaves out which elements of one container before the last attribute they are, the first one that
// suffices, of a dictionary with text for keys only where no other one does; empty: none does.
func withoutOneIndex(e []string, last, width int) string {
	for _, keys := range []bool{false, true} {
		for i := 1; i < last; i++ {
			short := join(e[:i]) + anyOf + strings.TrimPrefix(strings.TrimPrefix(join(e[i+1:]), anyOf), ".")
			if e[i][0] == '[' && strings.HasPrefix(e[i], "['") == keys && fits(short, width) {
				return short
			}
		}
	}
	return ""
}

// withoutIndices leaves out which elements of the containers before the last attribute they are: keys that are text stay,
// or not. The name of an attribute says more than a number.
func withoutIndices(e []string, last int, keys bool) string {
	out := e[0]
	for i, x := range e[1:] {
		switch {
		case i+1 < last && x[0] == '[' && !(keys && strings.HasPrefix(x, "['")):
			out = strings.TrimSuffix(out, anyOf) + anyOf
		case strings.HasSuffix(out, anyOf) && x == anyOf:
		case strings.HasSuffix(out, anyOf):
			out += strings.TrimPrefix(x, ".")
		default:
			out += x
		}
	}
	return out
}

// Traceback is the step from an exception to the frames that it keeps.
const Traceback = ".__traceback__"

// withoutFrames leaves out what lies between a traceback, or the object of a frame that waits, and the variable of the frame.
func withoutFrames(elements []string) []string {
	for i := 1; i+1 < len(elements); i++ {
		if strings.HasPrefix(elements[i], suspended) {
			variable := "." + strings.TrimPrefix(elements[i+1], " ")
			return slices.Concat(withoutFrames(elements[:i]), []string{variable}, withoutFrames(elements[i+2:]))
		}
	}
	i := slices.IndexFunc(elements, inTraceback)
	if i < 1 {
		return elements
	}
	for k := i; k+1 < len(elements); k++ {
		if strings.HasPrefix(elements[k], tbFrame) {
			variable := "." + strings.TrimPrefix(elements[k+1], " ")
			return slices.Concat(elements[:i], []string{anyOf, variable}, withoutFrames(elements[k+2:]))
		}
	}
	return elements
}

// Raised returns the part of a name up to the first traceback whose frames it goes through: "failures[0..9].__traceback__" or, if no
// exception leads to it, "records[0..9].exc_info[2]". ok is false if it goes through none.
func Raised(name string) (traceback string, ok bool) {
	p := Parse(name)
	i := slices.IndexFunc(p.Elements, inTraceback)
	if i < 1 {
		return "", false
	}
	p.Elements = p.Elements[:i]
	return p.String(), true
}

// starred writes what the keys of a dictionary begin with in place of the first and the last: ['task*'] for ['task1'..'task240'].
func starred(e []string) []string {
	out := slices.Clone(e)
	for i, x := range out {
		first, last, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(x, "['"), "']"), "'..'")
		if ok && x[0] == '[' {
			out[i] = "['" + commonStart(first, last) + "*']"
		}
	}
	return out
}

// commonStart is what two keys begin with, without the digits that follow.
func commonStart(x, y string) string {
	n := 0
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	return strings.TrimRight(strings.ToValidUTF8(x[:n], ""), "0123456789")
}

// leastElement is the length of the shortest rest of an element whose middle is left out, characters.
const leastElement = 8

// fitLongest leaves out the middle of the longest element; empty: that does not suffice.
func fitLongest(e []string, width int) string {
	long := 0
	for i := range e {
		if utf8.RuneCountInString(e[i]) > utf8.RuneCountInString(e[long]) {
			long = i
		}
	}
	keep := utf8.RuneCountInString(e[long]) - utf8.RuneCountInString(join(e)) + width
	if keep < leastElement {
		return ""
	}
	return join(slices.Concat(e[:long], []string{cut(e[long], keep)}, e[long+1:]))
}

// lastAttribute is the number of the last element that is an attribute; 0: none is.
func lastAttribute(e []string) int {
	last := len(e) - 1
	for last > 0 && e[last][0] != '.' {
		last--
	}
	return last
}

// fitBetween leaves out the fewest elements before the last attribute, but not the variable; empty: that does not suffice.
func fitBetween(e []string, last, width int) string {
	if s := join(e); fits(s, width) {
		return s
	}
	if last == 0 {
		return ""
	}
	head, tail := e[0], join(e[last:])
	short := func() string {
		return strings.TrimSuffix(head, anyOf) + anyOf + strings.TrimPrefix(strings.TrimPrefix(tail, anyOf), ".")
	}
	if !fits(short(), width) {
		return ""
	}
	best := short()
	first, end := 1, last
	for first < end {
		end--
		before := tail
		if tail = join(e[end:]); !fits(short(), width) {
			tail = before
			break
		}
		best = short()
	}
	for ; first < end; first++ {
		if head += e[first]; !fits(short(), width) {
			break
		}
		best = short()
	}
	return best
}

func fits(s string, width int) bool { return utf8.RuneCountInString(s) <= width }

// cut leaves out the middle of a text.
func cut(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	head := width / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-head-1):])
}
