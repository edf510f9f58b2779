// SPDX-License-Identifier: Apache-2.0

// Package text makes text of a process that is read safe to show.
package text

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// maxShown is how much of a text is shown, runes.
const maxShown = 60

// IsDigits reports whether a text is a number without a sign.
func IsDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// Plain makes text of the target safe to show: what does not print is escaped, and long text is cut.
func Plain(s string) string {
	var b strings.Builder
	n := 0
	for _, c := range s {
		if n++; n > maxShown {
			b.WriteRune('…')
			break
		}
		if unicode.IsPrint(c) {
			b.WriteRune(c)
		} else {
			fmt.Fprintf(&b, "\\x%02x", c)
		}
	}
	return b.String()
}

// Quote writes a str as Python's repr does, cut.
func Quote(s string) string {
	q, s := pyobject.Quotes(s)
	return q + Plain(s) + q
}

// After is what follows the last occurrence of a mark in a text, or all of a text without it.
func After(s, mark string) string {
	if i := strings.LastIndex(s, mark); i >= 0 {
		return s[i+len(mark):]
	}
	return s
}
