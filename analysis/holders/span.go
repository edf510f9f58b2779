// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// partKind says what a placeholder stands for.
type partKind uint8

const (
	numberPart partKind = iota // a position, or a key that is an int
	keyPart                    // a key that is a string
	objectPart                 // another key
	suffixPart                 // the digits at the end of an attribute
	namesPart                  // names of modules, each with a dot before it; there can be none
)

// placeholder is what a path has in one place.
type placeholder struct {
	kind   partKind
	number int64  // of numberPart; of objectPart an address that tells keys apart which look alike
	text   string // as it is shown; empty for a number
	key    string // of keyPart, the string itself
	stem   string // of suffixPart, what comes before the digits
}

const (
	anyName = "*"
	between = "…" // stands for names of modules that differ, before others
	// maxListed is how many characters keys that are listed one by one take, in all.
	maxListed = 26
	// fewNumbers is how many positions of a list are listed one by one.
	fewNumbers = 4
	// leastPrefix is the length of the shortest beginning of keys that is worth showing.
	leastPrefix = 3
)

// spanText is the text for placeholder n of the blocks of a group.
func spanText(templates []template, of []int, n int) string {
	distinct := map[placeholder]bool{}
	for _, i := range of {
		distinct[templates[i].placeholders[n]] = true
	}
	var all []placeholder
	kind := templates[of[0]].placeholders[n].kind
	for h := range distinct {
		all = append(all, h)
		if h.kind != kind { // ints and strings are keys of one dictionary
			kind = objectPart
		}
	}
	switch {
	case len(all) == 1 && kind == numberPart:
		return fmt.Sprint(all[0].number)
	case len(all) == 1:
		return all[0].text
	}
	switch kind {
	case numberPart:
		return numberSpan(all)
	case keyPart:
		return keySpan(all)
	case suffixPart:
		return suffixSpan(all)
	case namesPart:
		return namesSpan(all, n+1 == len(templates[of[0]].placeholders))
	}
	return countOf(len(all))
}

func countOf(n int) string { return fmt.Sprintf("%d keys", n) }

// numberSpan is the first and the last number. Where some between them are missing, it is all of them if they are
// few, else their number too.
func numberSpan(all []placeholder) string {
	slices.SortFunc(all, func(x, y placeholder) int { return cmp.Compare(x.number, y.number) })
	low, high := all[0].number, all[len(all)-1].number
	switch {
	case uint64(high-low) == uint64(len(all)-1):
		return fmt.Sprintf("%d..%d", low, high)
	case len(all) <= fewNumbers:
		texts := make([]string, len(all))
		for i := range all {
			texts[i] = strconv.FormatInt(all[i].number, 10)
		}
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%d items in %d..%d", len(all), low, high)
}

// keySpan is the first and the last key where they are numbered, a few keys one by one, else what they begin with and how many they are.
func keySpan(all []placeholder) string {
	slices.SortFunc(all, func(x, y placeholder) int { return strings.Compare(x.key, y.key) })
	if first, last, ok := numbered(all); ok {
		return first + ".." + last
	}
	length, texts := 0, make([]string, len(all))
	for i := range all {
		texts[i] = all[i].text
		length += utf8.RuneCountInString(all[i].text) + len(", ")
	}
	if length-len(", ") <= maxListed {
		return strings.Join(texts, ", ")
	}
	prefix := commonPrefix(all[0].key, all[len(all)-1].key) // sorted: of all
	if utf8.RuneCountInString(prefix) >= leastPrefix && strings.IndexFunc(prefix, isSpecial) < 0 {
		return fmt.Sprintf("%s '%s*'", countOf(len(all)), prefix)
	}
	return countOf(len(all))
}

// isSpecial reports whether a character of a key would have to be escaped.
func isSpecial(c rune) bool { return c == '\'' || c == '\\' || !strconv.IsPrint(c) }

// numbered finds the first and the last of keys that differ only in the number with which they end, none of which is missing.
func numbered(all []placeholder) (first, last string, ok bool) {
	stem, _ := splitDigits(all[0].key)
	low, high := 0, 0
	for i := range all {
		s, digits := splitDigits(all[i].key)
		if s != stem || digits == "" {
			return "", "", false
		}
		if value(digits) < digitsOf(all[low].key) {
			low = i
		}
		if value(digits) > digitsOf(all[high].key) {
			high = i
		}
	}
	return all[low].text, all[high].text, digitsOf(all[high].key)-digitsOf(all[low].key) == int64(len(all)-1)
}

func digitsOf(key string) int64 {
	_, digits := splitDigits(key)
	return value(digits)
}

// suffixSpan is what follows the stem of the first attribute.
func suffixSpan(all []placeholder) string {
	slices.SortFunc(all, func(x, y placeholder) int { return int(value(x.text) - value(y.text)) })
	last := &all[len(all)-1]
	if value(last.text)-value(all[0].text) == int64(len(all)-1) {
		return all[0].text + ".." + last.stem + last.text
	}
	return anyName
}

// namesSpan is what the names have in common, as far as whole names go.
func namesSpan(all []placeholder, atEnd bool) string {
	prefix := all[0].text
	for i := range all[1:] {
		prefix = commonPrefix(prefix, all[i+1].text)
	}
	for i := range all {
		if rest := all[i].text[len(prefix):]; rest != "" && rest[0] != '.' {
			prefix = prefix[:max(0, strings.LastIndexByte(prefix, '.'))]
			break
		}
	}
	if atEnd {
		return prefix + "." + anyName
	}
	return prefix + between
}

func commonPrefix(x, y string) string {
	n := 0
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	for n > 0 && n < len(x) && !utf8.RuneStart(x[n]) {
		n--
	}
	return x[:n]
}

// maxDigits is the length of the longest number in a name: a longer one is an id.
const maxDigits = 12

// splitDigits splits a name into what comes before the digits at its end, and these.
func splitDigits(name string) (stem, digits string) {
	stem = strings.TrimRight(name, "0123456789")
	if digits = name[len(stem):]; len(digits) > maxDigits {
		return name, ""
	}
	return stem, digits
}

func isDigits(name string) bool {
	stem, digits := splitDigits(name)
	return stem == "" && digits != ""
}

// value is the number of digits that splitDigits found.
func value(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64) // at most maxDigits
	return n
}
