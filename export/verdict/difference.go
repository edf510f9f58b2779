// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"strings"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// smallChange is the share of the memory in use up to which a difference counts as none.
const smallChange = 0.01

// OfDifference returns a sentence about what changed: how much more or less is in use, and what most of the change is.
func OfDifference(d *view.Difference) string {
	before, after, change := d.Before.Bytes, d.After.Bytes, d.Bytes()
	text := fmt.Sprintf("%s before, %s after", table.SignedBytes(before), table.SignedBytes(after))
	switch size := max(change, -change); {
	case change == 0:
		text = fmt.Sprintf("as much is in use after as before, %s", table.SignedBytes(after))
	case float64(size) < smallChange*float64(before):
		text = fmt.Sprintf("nearly as much is in use after as before: %s, %s", text, signed(change))
	case change > 0:
		text = fmt.Sprintf("%s more in use: %s", table.Bytes(uint64(change)), text)
	default:
		text = fmt.Sprintf("%s less in use: %s", table.Bytes(uint64(-change)), text)
	}
	if len(d.Rows) == 0 || d.Rows[0].Bytes() == 0 {
		return text
	}
	c := &d.Rows[0]
	e := c.Row()
	return fmt.Sprintf("%s; the largest change is %s of %s", text, signed(c.Bytes()), words.Line(strings.TrimSpace(e.Name+" "+e.Func)))
}

// signed returns bytes with their sign: "+1.0 KiB".
func signed(n int64) string {
	if n > 0 {
		return "+" + table.SignedBytes(n)
	}
	return table.SignedBytes(n)
}
