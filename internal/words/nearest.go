// SPDX-License-Identifier: Apache-2.0

package words

import "fmt"

// shortWord is up to how many letters a word is another one when two of its letters are: "pdf" is not "png".
const shortWord = 4

// DidYouMean asks whether the word of a list that is most like another was meant: ": did you mean "png"?". Empty if none is like it: one
// letter of a short word, or two of a longer one, may differ.
func DidYouMean(word string, list []string) string {
	allowed := 2
	if len(word) <= shortWord {
		allowed = 1
	}
	best, least := "", allowed+1
	for _, w := range list {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	if best == "" || len(word) < 2 {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// distance is how many letters must be added, left out, replaced or swapped with the next one (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		for j := range rows[i] {
			rows[i][j] = step(rows, x, y, i, j)
		}
	}
	return rows[len(x)][len(y)]
}

// step is the distance between the first i letters and the first j.
func step(rows [][]int, x, y []rune, i, j int) int {
	if i == 0 || j == 0 {
		return i + j
	}
	cost := 1
	if x[i-1] == y[j-1] {
		cost = 0
	}
	d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
	if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
		d = min(d, rows[i-2][j-2]+1)
	}
	return d
}
