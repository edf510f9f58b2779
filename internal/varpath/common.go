// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Part is a holder, and the bytes that it holds.
type Part struct {
	Name  string
	Bytes uint64
}

// Common is the innermost container that holds at least a share of the bytes of all parts; empty: none does. Where the ways part below
// it, and end alike, both ends are named: "model…cache[0..9]".
func Common(parts []Part, share float64) string {
	var all []weighed
	total := uint64(0)
	for _, p := range parts {
		total += p.Bytes
		all = append(all, weighed{Parse(p.Name), p.Bytes})
	}
	least := uint64(share * float64(total))
	depth := 0
	for {
		group, ends := largest(all, func(p *Path) string {
			if depth >= len(p.Elements) {
				return ""
			}
			return at(p, depth)
		})
		if group == nil || ends || sum(group) < max(least, 1) {
			break
		}
		all = group
		depth++
	}
	for depth > 0 && inTraceback(all[0].Elements[depth-1]) { // several variables of one frame
		depth--
	}
	if depth > 0 && all[0].Elements[depth-1] == anyOf { // what follows is sought from the ends
		depth--
	}
	if depth == 0 {
		return ""
	}
	head := merged(all, 0, depth)
	if tail := commonEnd(all, depth, least); tail != "" {
		return head + anyOf + strings.TrimPrefix(tail, ".")
	}
	return head
}

// inTraceback reports whether an element leads from a traceback to a frame.
func inTraceback(element string) bool {
	return strings.HasPrefix(element, tbFrame) || element == ".tb_next"
}

type weighed struct {
	Path
	bytes uint64
}

func sum(all []weighed) (n uint64) {
	for i := range all {
		n += all[i].bytes
	}
	return n
}

// at is the kind of an element; of the first with its frame.
func at(p *Path, depth int) string {
	if depth == 0 {
		return whereKey(p.Where) + local + kind(p.Elements[0])
	}
	return kind(p.Elements[depth])
}

// largest are the paths whose key has the most bytes; ends: that is those whose key is empty.
func largest(all []weighed, key func(p *Path) string) (best []weighed, ends bool) {
	groups := map[string][]weighed{}
	for i := range all {
		k := key(&all[i].Path)
		groups[k] = append(groups[k], all[i])
	}
	var keys []string
	for k := range groups {
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, true
	}
	slices.SortFunc(keys, func(x, y string) int {
		return cmp.Or(cmp.Compare(sum(groups[y]), sum(groups[x])), cmp.Compare(x, y))
	})
	return groups[keys[0]], keys[0] == ""
}

// commonEnd are the last elements that most paths share which lead on from a depth; empty: none, or only positions.
func commonEnd(all []weighed, depth int, least uint64) string {
	all = slices.DeleteFunc(slices.Clone(all), func(w weighed) bool { return len(w.Elements) <= depth })
	n := 0
	from := func(of func(element string) string) func(p *Path) string {
		return func(p *Path) string {
			if len(p.Elements)-n-1 <= depth { // the first differs
				return ""
			}
			return of(p.Elements[len(p.Elements)-n-1])
		}
	}
	for {
		group, ends := largest(all, from(kind))
		if group == nil || ends {
			break
		}
		if sum(group) < max(least, 1) {
			if group, ends = largest(all, from(stem)); ends || sum(group) < max(least, 1) {
				break
			}
		}
		all = group
		n++
	}
	if n == 0 || !slices.ContainsFunc(all[0].Elements[len(all[0].Elements)-n:], func(e string) bool { return e[0] == '.' }) {
		return ""
	}
	for i := range all { // aligned at their ends
		all[i].Where = ""
		all[i].Elements = all[i].Elements[len(all[i].Elements)-n:]
	}
	return merged(all, 0, n)
}

// merged is the text of the elements from one depth to another, with what all paths have there. What has the most bytes names the frame.
func merged(all []weighed, from, to int) string {
	most := slices.MaxFunc(all, func(x, y weighed) int { return cmp.Compare(x.bytes, y.bytes) })
	out := Path{Where: most.Where}
	for depth := from; depth < to; depth++ {
		texts := map[string]bool{}
		for i := range all {
			texts[all[i].Elements[depth]] = true
		}
		out.Elements = append(out.Elements, mergedElement(most.Elements[depth], texts))
	}
	return out.String()
}

func mergedElement(text string, all map[string]bool) string {
	switch {
	case len(all) == 1:
		return text
	case strings.HasPrefix(text, graph):
		return graph + " " + anyOf
	case text[0] != '[' && slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(e string) bool { return kind(e) != kind(text) }):
		return stem(text)
	case text[0] != '[':
		return strings.TrimSuffix(kind(text), "#") + "*"
	}
	var spans [][2]int64
	for e := range all {
		low, high, ok := span(e)
		if !ok {
			return mergedKeys(all)
		}
		spans = append(spans, [2]int64{low, high})
	}
	slices.SortFunc(spans, func(x, y [2]int64) int { return cmp.Compare(x[0], y[0]) })
	end := spans[0][1]
	for _, s := range spans[1:] {
		if s[0] > end+1 {
			return "[*]"
		}
		end = max(end, s[1])
	}
	return fmt.Sprintf("[%d..%d]", spans[0][0], end)
}

// maxListed is how many characters the keys of one dictionary take that are listed, in all.
const maxListed = 26

// mergedKeys are keys that are texts one by one, where they are few.
func mergedKeys(all map[string]bool) string {
	keys, length := slices.Sorted(maps.Keys(all)), 0
	for i, k := range keys {
		keys[i] = strings.TrimSuffix(strings.TrimPrefix(k, "["), "]")
		if length += utf8.RuneCountInString(keys[i]) + len(", "); length-len(", ") > maxListed || keys[i] == "" || keys[i][0] != '\'' ||
			strings.Contains(keys[i], ", ") {
			return "[*]"
		}
	}
	return "[" + strings.Join(keys, ", ") + "]"
}

// span is the first and the last position of an element; false: it names none, or not all between them.
func span(element string) (low, high int64, ok bool) {
	first, last, several := strings.Cut(strings.Trim(element, "[]"), "..")
	low, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if !several {
		return low, low, true
	}
	high, err = strconv.ParseInt(last, 10, 64)
	return low, high, err == nil
}
