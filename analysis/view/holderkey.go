// SPDX-License-Identifier: Apache-2.0

package view

import "regexp"

// ranged is a part of a holder's name that changes while a container grows: a position, a range of them or of keys, or how many there are.
var ranged = regexp.MustCompile(`\[(?:\*|\d+|\d+\.\.\d+|'[^']*\*[^']*'|[^\[\]]*\.\.[^\[\]]*|\d[\d,]* keys)\]`)

// HolderKey is what the names of one holder have in common from one reading to the next: "losses[0..24]" and "losses[0..99]" are both
// "losses[]".
func HolderKey(name string) string { return ranged.ReplaceAllString(name, "[]") }
